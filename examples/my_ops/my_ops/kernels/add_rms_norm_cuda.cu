// The CUDA kernel: one block for each row.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "add_rms_norm.h"

namespace my_ops_kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ float to_float(float value) { return value; }
__device__ float to_float(BFloat16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }

__device__ void store(float value, float& to) { to = value; }
__device__ void store(float value, BFloat16& to) { to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value)); }

// The sum over all threads of the block, in all of them.
__device__ float block_sum(float value) {
  __shared__ float of_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);  // the warp's sum ends up in its first thread
  }
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) {
    sum += of_warp[warp];
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) add_rms_norm_kernel(AddRmsNorm<T> norm) {
  const std::int64_t begin = blockIdx.x * norm.columns;
  T* const residual = norm.residual + begin;
  float squares = 0.0f;
  for (std::int64_t i = threadIdx.x; i < norm.columns; i += kThreads) {
    store(to_float(norm.x[begin + i]) + to_float(residual[i]), residual[i]);
    const float value = to_float(residual[i]);
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(norm.columns) + norm.eps);
  for (std::int64_t i = threadIdx.x; i < norm.columns; i += kThreads) {
    store(to_float(residual[i]) * scale * to_float(norm.weight[i]), norm.out[begin + i]);
  }
}

}  // namespace

template <class T>
const char* add_rms_norm_cuda(const AddRmsNorm<T>& norm, std::int64_t rows, void* stream) {
  if (rows > 2147483647) {
    return "there are more rows than a grid has blocks";
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(rows));
  launch.blockDim = dim3(kThreads);
  launch.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&launch, add_rms_norm_kernel<T>, norm);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template const char* add_rms_norm_cuda(const AddRmsNorm<float>&, std::int64_t, void*);
template const char* add_rms_norm_cuda(const AddRmsNorm<BFloat16>&, std::int64_t, void*);

}  // namespace my_ops_kernels
