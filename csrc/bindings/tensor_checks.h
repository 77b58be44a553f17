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
  static constexpr std::size_t kNoList = static_cast<std::size_t>(-1);  // for an argument that is one tensor

  const char* role;
  std::size_t index;

  std::string text() const {
    return index == kNoList ? std::string(role) : std::string(role) + " of tensor " + std::to_string(index);
  }
};

inline std::string type_name(const torch::stable::Tensor& tensor) {
  return torch::headeronly::toString(tensor.scalar_type());
}

// The address of the first of `bytes` bytes of a dense tensor, whose elements are of `element_bytes`. A storage can be
// freed or shrunk in place, as x.untyped_storage().resize_(0) does to save memory; the sizes of its tensors stay, so
// nothing else would tell that the elements are gone.
inline void* memory_of(const torch::stable::Tensor& tensor, const Argument& argument, std::int64_t bytes,
                       std::int64_t element_bytes) {
  void* const data = tensor.data_ptr();
  std::int64_t stored = 0;  // in bytes, where the offset is in elements
  std::int64_t offset = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &stored));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(tensor.get(), &offset));
  const std::int64_t end = offset * element_bytes + bytes;
  if (bytes > 0 && (end > stored || data == nullptr)) {
    refuse(argument.text() + " reaches to byte " + std::to_string(end) + " of its storage, which has " +
               std::to_string(data == nullptr ? 0 : stored) + " bytes: it was freed or shrunk.",
           "Allocate it again, for example by x.untyped_storage().resize_(" + std::to_string(end) + ").");
  }
  return data;
}

// Whether `tensor` is dense. Tensor::layout() came with torch 2.11; the C functions are those of 2.10.
inline bool is_strided(const torch::stable::Tensor& tensor) {
  std::int32_t layout = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(tensor.get(), &layout));
  return layout == aoti_torch_layout_strided();
}

// The memory of `tensor`, whose elements are of `element_bytes`.
inline HostMemory host_memory(const torch::stable::Tensor& tensor, const Argument& argument, std::int64_t element_bytes) {
  if (!is_strided(tensor)) {
    refuse(argument.text() + " is sparse; a dense (strided) tensor is needed.", "Pass a dense tensor, for example x.to_dense().");
  }
  if (!tensor.is_cpu()) {
    refuse(argument.text() + " is not in host memory; this op works on CPU tensors.", "Pass a CPU tensor, for example x.cpu().");
  }
  if (!tensor.is_contiguous()) {
    refuse(argument.text() + " is not contiguous; contiguous memory is needed.", "Pass x.contiguous().");
  }
  const std::int64_t numel = tensor.numel();
  const std::int64_t bytes = numel * element_bytes;
  return {static_cast<char*>(memory_of(tensor, argument, bytes, element_bytes)), numel, bytes};
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
