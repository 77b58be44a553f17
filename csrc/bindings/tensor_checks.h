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

// Dense host memory: borrowed, valid as long as the tensor is.
struct HostMemory {
  char* data;
  std::int64_t numel;
  std::int64_t bytes;
};

// A dense host tensor of floating-point elements.
struct HostTensor : HostMemory {
  DType dtype;
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

inline std::string type_name(const torch::stable::Tensor& tensor) {
  return torch::headeronly::toString(tensor.scalar_type());
}

// The memory of `tensor`, whose elements are of `element_bytes`.
inline HostMemory host_memory(const torch::stable::Tensor& tensor, const Argument& argument, std::int64_t element_bytes) {
  if (tensor.layout() != torch::headeronly::Layout::Strided) {
    refuse(argument.text() + " is sparse; a dense (strided) tensor is needed.", "Pass a dense tensor, for example x.to_dense().");
  }
  if (!tensor.is_cpu()) {
    refuse(argument.text() + " is not in host memory; this op works on CPU tensors.", "Pass a CPU tensor, for example x.cpu().");
  }
  if (!tensor.is_contiguous()) {
    refuse(argument.text() + " is not contiguous; contiguous memory is needed.", "Pass x.contiguous().");
  }
  const std::int64_t numel = tensor.numel();
  return {static_cast<char*>(tensor.data_ptr()), numel, numel * element_bytes};
}

inline HostTensor host_tensor(const torch::stable::Tensor& tensor, const Argument& argument) {
  using torch::headeronly::ScalarType;
  DType dtype = DType::float32;
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      break;
    case ScalarType::BFloat16:
      dtype = DType::bfloat16;
      break;
    case ScalarType::Half:
      dtype = DType::float16;
      break;
    default:
      // Where it lies is told first: a sparse or foreign tensor may be of a foreign type besides.
      host_memory(tensor, argument, 0);
      refuse(argument.text() + " is of type " + type_name(tensor) + "; float32, bfloat16 or float16 is needed.",
             "Convert it, for example x.float().");
  }
  return {host_memory(tensor, argument, size_bytes(dtype)), dtype};
}

inline bool overlap(const HostMemory& a, const HostMemory& b) {
  return a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

}  // namespace accel
