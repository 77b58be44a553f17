// What both bindings have in common: the schema, and the checks of tensors.
//
// A binding is thin: schema, checks, dispatch. It uses torch's stable C ABI alone (torch/csrc/stable/), so one binary
// serves every torch >= 2.10 and every Python.
#pragma once

#include <stdexcept>
#include <string>

#include <torch/csrc/stable/tensor.h>

#include "add_rms_norm.h"
#include "bindings/stable_library.h"  // of accel-ops

namespace my_ops_kernels {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Results are arguments that are written, (a!) and (b!), and nothing is returned: torch.compile and opcheck take that
// as it is. The Python front end makes the result's tensor.
inline void define(accel::Library& library) {
  library.def("add_rms_norm(Tensor(a!) out, Tensor(b!) residual, Tensor x, Tensor weight, float eps) -> ()");
}

// For tracing: nothing is returned and there is no memory to write, so there is nothing to do.
inline void add_rms_norm_meta(Tensor, Tensor, Tensor, Tensor, double) {}
inline void implement_meta(accel::Library& library) { library.impl("add_rms_norm", TORCH_BOX(&add_rms_norm_meta)); }

// Python sees a ValueError.
[[noreturn]] inline void refuse(const std::string& message) { throw std::invalid_argument("add_rms_norm: " + message); }

inline void require_like(const Tensor& x, const Tensor& tensor, const char* name) {
  if (tensor.scalar_type() != x.scalar_type()) {
    refuse(std::string(name) + " and x are of different dtypes.");
  }
  if (tensor.is_cpu() != x.is_cpu() || tensor.get_device_index() != x.get_device_index()) {
    refuse(std::string(name) + " and x are on different devices.");
  }
  if (!tensor.is_contiguous()) {
    refuse(std::string(name) + " is not contiguous; pass its .contiguous().");
  }
}

inline void require_shape_of(const Tensor& x, const Tensor& tensor, const char* name) {
  bool is_same = tensor.dim() == x.dim();
  for (std::int64_t i = 0; is_same && i < x.dim(); ++i) {
    is_same = tensor.size(i) == x.size(i);
  }
  if (!is_same) {
    refuse(std::string(name) + " and x are of different shapes.");
  }
}

// A kernel does not check its arguments, so everything is checked before it runs.
inline void require_arguments(const Tensor& out, const Tensor& residual, const Tensor& x, const Tensor& weight) {
  if (x.scalar_type() != ScalarType::Float && x.scalar_type() != ScalarType::BFloat16) {
    refuse("x is of dtype " + std::string(torch::headeronly::toString(x.scalar_type())) +
           "; float32 or bfloat16 is needed.");
  }
  require_like(x, x, "x");
  require_like(x, out, "out");
  require_like(x, residual, "residual");
  require_like(x, weight, "weight");
  require_shape_of(x, out, "out");
  require_shape_of(x, residual, "residual");
  if (x.dim() < 1 || weight.dim() != 1 || weight.size(0) != x.size(-1)) {
    refuse("weight must have one element for each of the last dimension of x.");
  }
}

template <class T>
AddRmsNorm<T> arguments(const Tensor& out, const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  return {static_cast<T*>(out.mutable_data_ptr()),
          static_cast<T*>(residual.mutable_data_ptr()),
          static_cast<const T*>(x.data_ptr()),
          static_cast<const T*>(weight.data_ptr()),
          x.size(-1),
          static_cast<float>(eps)};
}

// Calls run(AddRmsNorm<T>, rows) for the type of the tensors' elements.
template <class Run>
void dispatch(const Tensor& out, const Tensor& residual, const Tensor& x, const Tensor& weight, double eps,
              const Run& run) {
  require_arguments(out, residual, x, weight);
  if (x.numel() == 0) {
    return;
  }
  const std::int64_t rows = x.numel() / x.size(-1);
  if (x.scalar_type() == ScalarType::Float) {
    run(arguments<float>(out, residual, x, weight, eps), rows);
  } else {
    run(arguments<BFloat16>(out, residual, x, weight, eps), rows);
  }
}

}  // namespace my_ops_kernels
