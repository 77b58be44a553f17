// torch's tensors, through its C ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "torch_c/functions.h"

namespace accel {

// The types of elements that our ops know; kOther is every other one.
enum class ScalarType : std::uint8_t { Float, BFloat16, Half, Double, Byte, Char, Int, Long, Bool, kOther };

namespace torch_c {

struct NamedType {
  ScalarType type;
  std::int32_t (*number)();
  const char* name;
};
// The names that torch uses in messages; the types that optimizers check most often come first.
inline constexpr NamedType kTypes[] = {
    {ScalarType::Float, aoti_torch_dtype_float32, "Float"},
    {ScalarType::BFloat16, aoti_torch_dtype_bfloat16, "BFloat16"},
    {ScalarType::Half, aoti_torch_dtype_float16, "Half"},
    {ScalarType::Byte, aoti_torch_dtype_uint8, "Byte"},
    {ScalarType::Double, aoti_torch_dtype_float64, "Double"},
    {ScalarType::Long, aoti_torch_dtype_int64, "Long"},
    {ScalarType::Int, aoti_torch_dtype_int32, "Int"},
    {ScalarType::Char, aoti_torch_dtype_int8, "Char"},
    {ScalarType::Bool, aoti_torch_dtype_bool, "Bool"},
    {ScalarType::kOther, aoti_torch_dtype_int16, "Short"},
    {ScalarType::kOther, aoti_torch_dtype_uint16, "UInt16"},
    {ScalarType::kOther, aoti_torch_dtype_uint32, "UInt32"},
    {ScalarType::kOther, aoti_torch_dtype_uint64, "UInt64"},
    {ScalarType::kOther, aoti_torch_dtype_complex32, "ComplexHalf"},
    {ScalarType::kOther, aoti_torch_dtype_complex64, "ComplexFloat"},
    {ScalarType::kOther, aoti_torch_dtype_complex128, "ComplexDouble"},
    {ScalarType::kOther, aoti_torch_dtype_float8_e5m2, "Float8_e5m2"},
    {ScalarType::kOther, aoti_torch_dtype_float8_e4m3fn, "Float8_e4m3fn"},
    {ScalarType::kOther, aoti_torch_dtype_float8_e5m2fnuz, "Float8_e5m2fnuz"},
    {ScalarType::kOther, aoti_torch_dtype_float8_e4m3fnuz, "Float8_e4m3fnuz"},
};

// The type with this number of torch; null if kTypes lacks it.
inline const NamedType* find_type(std::int32_t number) {
  for (const NamedType& named : kTypes) {
    if (named.number() == number) {
      return &named;
    }
  }
  return nullptr;
}

}  // namespace torch_c

// A reference to a tensor, like torch::Tensor: copies refer to the same tensor. A copy allocates a handle. A moved-from
// Tensor refers to none and can only be assigned to.
class Tensor {
 public:
  // Takes over the handle.
  explicit Tensor(AtenTensorHandle owned) : handle_(owned) {}
  Tensor(const Tensor& other)
      : handle_(ACCEL_TORCH_GET(AtenTensorHandle, aoti_torch_new_tensor_handle, other.handle_)) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) {
      aoti_torch_delete_tensor_object(handle_);
    }
  }

  AtenTensorHandle get() const { return handle_; }
  // The handle belongs to the caller.
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  void* data_ptr() const { return ACCEL_TORCH_GET(void*, aoti_torch_get_data_ptr, handle_); }
  std::int64_t numel() const { return ACCEL_TORCH_GET(std::int64_t, aoti_torch_get_numel, handle_); }
  std::int64_t storage_bytes() const { return ACCEL_TORCH_GET(std::int64_t, aoti_torch_get_storage_size, handle_); }
  // In elements.
  std::int64_t storage_offset() const { return ACCEL_TORCH_GET(std::int64_t, aoti_torch_get_storage_offset, handle_); }
  bool is_contiguous() const { return ACCEL_TORCH_GET(bool, aoti_torch_is_contiguous, handle_); }
  // Whether it is dense.
  bool is_strided() const {
    return ACCEL_TORCH_GET(std::int32_t, aoti_torch_get_layout, handle_) == aoti_torch_layout_strided();
  }

  std::int32_t device_type() const { return ACCEL_TORCH_GET(std::int32_t, aoti_torch_get_device_type, handle_); }
  std::int32_t device_index() const { return ACCEL_TORCH_GET(std::int32_t, aoti_torch_get_device_index, handle_); }
  bool is_cpu() const { return device_type() == aoti_torch_device_type_cpu(); }
  bool is_cuda() const { return device_type() == aoti_torch_device_type_cuda(); }

  ScalarType scalar_type() const {
    const torch_c::NamedType* const named = torch_c::find_type(dtype());
    return named == nullptr ? ScalarType::kOther : named->type;
  }
  // The name that torch uses, for messages.
  std::string type_name() const {
    const std::int32_t number = dtype();
    const torch_c::NamedType* const named = torch_c::find_type(number);
    return named == nullptr ? "number " + std::to_string(number) : named->name;
  }
  std::int64_t element_size() const { return static_cast<std::int64_t>(aoti_torch_dtype_element_size(dtype())); }
  // torch's number of the type.
  std::int32_t dtype() const { return ACCEL_TORCH_GET(std::int32_t, aoti_torch_get_dtype, handle_); }

 private:
  AtenTensorHandle handle_;
};

}  // namespace accel
