// Tensors that bindings make themselves, and the device they work on.
#pragma once

#include <cstdint>

#include "torch_c/boxed.h"

namespace accel {

// A tensor of the same shape, type and strides, with memory of its own.
inline Tensor empty_like(const Tensor& tensor) {
  // Type, layout, device, pin_memory and memory_format follow; all are None.
  StableIValue stack[6] = {torch_c::Passed<Tensor>::give(tensor)};
  ACCEL_TORCH(torch_call_dispatcher, "aten::empty_like", "", stack, torch_c::kAbi);
  return torch_c::Passed<Tensor>::take(stack[0]);
}

// A tensor of `bytes` in a CUDA device's memory, from torch's allocator, on the current stream.
inline Tensor empty_cuda_bytes(std::int64_t bytes, std::int32_t device_index) {
  const std::int64_t stride = 1;
  return Tensor(ACCEL_TORCH_GET(AtenTensorHandle, aoti_torch_empty_strided, 1, &bytes, &stride,
                                aoti_torch_dtype_uint8(), aoti_torch_device_type_cuda(), device_index));
}

// Makes a device the current one of this thread for its lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(std::int32_t device_index)
      : handle_(ACCEL_TORCH_GET(DeviceGuardHandle, aoti_torch_create_device_guard, device_index)) {}
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { aoti_torch_delete_device_guard(handle_); }

 private:
  DeviceGuardHandle handle_;
};

}  // namespace accel
