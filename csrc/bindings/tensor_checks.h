// Checks of tensors, made before anything is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/dtype.h"
#include "torch_c/tensor.h"

namespace accel {

// Reports a bad argument: Python sees a ValueError (torch_c/errors.h) with the two texts on a line each.
[[noreturn]] inline void refuse(const std::string& found, const std::string& remedy) {
  throw std::invalid_argument(found + '\n' + remedy);
}

// The memory of a dense tensor: borrowed, valid as long as the tensor is.
struct DenseMemory {
  char* data;
  std::int64_t numel;
  std::int64_t bytes;
};

// The same of floating-point elements.
struct FloatMemory : DenseMemory {
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

// Which tensor of which list, for messages.
struct Argument {
  static constexpr std::size_t kNoList = static_cast<std::size_t>(-1);  // for an argument that is one tensor

  const char* role;
  std::size_t index;

  std::string text() const {
    return index == kNoList ? std::string(role) : std::string(role) + " of tensor " + std::to_string(index);
  }
};

// The address of the first of `bytes` bytes of a dense tensor, whose elements have `element_bytes`. A storage can be
// freed or shrunk in place, as by x.untyped_storage().resize_(0), without changing the sizes of its tensors.
inline void* memory_of(const Tensor& tensor, const Argument& argument, std::int64_t bytes, std::int64_t element_bytes) {
  void* const data = tensor.data_ptr();
  const std::int64_t stored = tensor.storage_bytes();
  const std::int64_t end = tensor.storage_offset() * element_bytes + bytes;
  if (bytes > 0 && (end > stored || data == nullptr)) {
    refuse(argument.text() + " reaches to byte " + std::to_string(end) + " of its storage, which has " +
               std::to_string(data == nullptr ? 0 : stored) + " bytes: it was freed or shrunk.",
           "Allocate it again, for example by x.untyped_storage().resize_(" + std::to_string(end) + ").");
  }
  return data;
}

// Refuses a tensor that is not dense and contiguous, then one that `require_place(tensor, argument)` refuses. Returns
// its memory; elements have `element_bytes`.
template <class RequirePlace>
DenseMemory dense_memory(const Tensor& tensor, const Argument& argument, std::int64_t element_bytes,
                         const RequirePlace& require_place) {
  if (!tensor.is_strided()) {
    refuse(argument.text() + " is sparse; a dense (strided) tensor is required.",
           "Pass a dense tensor, for example x.to_dense().");
  }
  require_place(tensor, argument);
  if (!tensor.is_contiguous()) {
    refuse(argument.text() + " is not contiguous; contiguous memory is required.", "Pass x.contiguous().");
  }
  const std::int64_t numel = tensor.numel();
  const std::int64_t bytes = numel * element_bytes;
  return {static_cast<char*>(memory_of(tensor, argument, bytes, element_bytes)), numel, bytes};
}

// The same for a tensor of float32, bfloat16 or float16.
template <class RequirePlace>
FloatMemory float_memory(const Tensor& tensor, const Argument& argument, const RequirePlace& require_place) {
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
      // Report the device first: a sparse tensor may also have an unsupported dtype.
      dense_memory(tensor, argument, 0, require_place);
      refuse(argument.text() + " is of type " + tensor.type_name() + "; float32, bfloat16 or float16 is required.",
             "Convert it, for example x.float().");
  }
  return {dense_memory(tensor, argument, size_bytes(dtype), require_place), dtype};
}

inline void require_host(const Tensor& tensor, const Argument& argument) {
  if (!tensor.is_cpu()) {
    refuse(argument.text() + " is not in host memory; this op supports CPU tensors.",
           "Pass a CPU tensor, for example x.cpu().");
  }
}

inline DenseMemory host_memory(const Tensor& tensor, const Argument& argument, std::int64_t element_bytes) {
  return dense_memory(tensor, argument, element_bytes, require_host);
}

inline bool overlap(const DenseMemory& a, const DenseMemory& b) {
  return a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

}  // namespace accel
