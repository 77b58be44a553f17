// What every op on host tensors asks of them, checked before anything is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <torch/csrc/stable/tensor.h>

#include "common/dtype.h"

namespace accel {

// Reports a bad argument: Python sees a ValueError with the two texts on a line each.
// (STD_TORCH_CHECK throws the same way, but puts a source position in front and is a RuntimeError.)
[[noreturn]] inline void refuse(const std::string& found, const std::string& remedy) {
  throw std::invalid_argument(found + '\n' + remedy);
}

// A dense host tensor: borrowed memory, valid as long as the tensor is.
struct HostTensor {
  char* data;
  std::int64_t numel;
  DType dtype;

  std::int64_t bytes() const { return numel * size_bytes(dtype); }
};

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
  }
  return "";
}

// Which tensor of which list, for messages; put into words only when one is needed.
struct Argument {
  const char* role;
  std::size_t index;

  std::string text() const { return std::string(role) + " of tensor " + std::to_string(index); }
};

inline HostTensor host_tensor(const torch::stable::Tensor& tensor, const Argument& argument) {
  using torch::headeronly::ScalarType;
  if (tensor.layout() != torch::headeronly::Layout::Strided) {
    refuse(argument.text() + " is sparse; a dense (strided) tensor is needed.", "Pass a dense tensor, for example x.to_dense().");
  }
  if (!tensor.is_cpu()) {
    refuse(argument.text() + " is not in host memory; this op works on CPU tensors.", "Pass a CPU tensor, for example x.cpu().");
  }
  if (!tensor.is_contiguous()) {
    refuse(argument.text() + " is not contiguous; contiguous memory is needed.", "Pass x.contiguous().");
  }
  HostTensor result{nullptr, tensor.numel(), DType::float32};
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      break;
    case ScalarType::BFloat16:
      result.dtype = DType::bfloat16;
      break;
    case ScalarType::Half:
      result.dtype = DType::float16;
      break;
    default:
      refuse(argument.text() + " is of type " + torch::headeronly::toString(tensor.scalar_type()) +
                 "; float32, bfloat16 or float16 is needed.",
             "Convert it, for example x.float().");
  }
  result.data = static_cast<char*>(tensor.data_ptr());
  return result;
}

inline bool overlap(const HostTensor& a, const HostTensor& b) {
  return a.data < b.data + b.bytes() && b.data < a.data + a.bytes() && a.numel > 0 && b.numel > 0;
}

}  // namespace accel
