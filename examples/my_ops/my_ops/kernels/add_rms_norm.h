// The kernels: raw pointers, sizes, plain C++ and CUDA. They know no torch, so they compile in a
// second and can be tested, profiled and used without it.
#pragma once

#include <cstdint>

namespace my_ops_kernels {

// Storage of a bfloat16, the upper half of a float; arithmetic is done in float.
struct BFloat16 {
  std::uint16_t bits;
};

// A root-mean-square layer norm of a sum, as transformers have it before each block. For each row
//   residual <- x + residual
//   out      <- residual / sqrt(mean(residual^2) + eps) * weight
// Rows are dense and lie one after the other. out may be x; the other arrays must not overlap.
// T is float or BFloat16. What is stored is rounded to T; the mean is taken of what was stored.
template <class T>
struct AddRmsNorm {
  T* out;
  T* residual;
  const T* x;
  const T* weight;  // one row
  std::int64_t columns;
  float eps;
};

// Rows from `first` to before `last`, on the calling thread.
template <class T>
void add_rms_norm_cpu(const AddRmsNorm<T>& norm, std::int64_t first, std::int64_t last);

// Starts the kernel on a cudaStream_t. Returns null, or why it could not be started.
template <class T>
const char* add_rms_norm_cuda(const AddRmsNorm<T>& norm, std::int64_t rows, void* stream);

}  // namespace my_ops_kernels
