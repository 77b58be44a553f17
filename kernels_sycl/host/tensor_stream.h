// The stream on which an op works on a tensor, by LibTorch's Stable ABI.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "host/launch.h"
#include "torch_c/tensor.h"

// Part of torch's stable C ABI, but only in XPU builds of torch: elsewhere its address is null.
extern "C" __attribute__((weak, visibility("default"))) AOTITorchError
aoti_torch_get_current_xpu_stream(int32_t device_index, void** ret_stream);

namespace accel::xpu {

// CPU tensors: a stream of the SYCL CPU device; call finish() before returning. XPU tensors: torch's current stream of
// their device, nothing synchronised. (The second was never run on hardware by this project.)
inline Stream stream_for(AtenTensorHandle tensor) {
  if (ACCEL_TORCH_GET(std::int32_t, aoti_torch_get_device_type, tensor) == aoti_torch_device_type_cpu()) {
    return host_stream();
  }
  if (&aoti_torch_get_current_xpu_stream == nullptr) {
    throw std::runtime_error(
        "This op got a tensor of another device, and the installed torch is not an XPU build.\n"
        "Pass a CPU tensor, or install an XPU build of torch.");
  }
  const auto index = ACCEL_TORCH_GET(std::int32_t, aoti_torch_get_device_index, tensor);
  return queue_stream(ACCEL_TORCH_GET(void*, aoti_torch_get_current_xpu_stream, index));
}

// An accel::Tensor, or one of torch's own classes.
template <class AnyTensor>
Stream stream_for(const AnyTensor& tensor) {
  return stream_for(tensor.get());
}

}  // namespace accel::xpu
