// The stream on which an op works on a tensor, by LibTorch's Stable ABI.
#pragma once

#include <cstdint>
#include <stdexcept>


#include "host/launch.h"
#include "torch_c/tensor.h"

// Of torch's stable C ABI, in an XPU build of torch alone: elsewhere its address is null.
extern "C" __attribute__((weak, visibility("default"))) int32_t aoti_torch_get_current_xpu_stream(int32_t device_index, void** stream);

namespace accel::xpu {

// CPU tensors: a stream of the SYCL CPU device; call finish() before returning. XPU tensors: torch's current stream of
// their device, nothing synchronised. (The second was never run on hardware by this project.)
inline Stream stream_for(const Tensor& tensor) {
  if (tensor.is_cpu()) {
    return host_stream();
  }
  if (&aoti_torch_get_current_xpu_stream == nullptr) {
    throw std::runtime_error("This op was given a tensor of another device, and torch is no XPU build.\n"
                             "Pass a CPU tensor, or install a torch for XPU.");
  }
  return queue_stream(ACCEL_TORCH_GET(void*, aoti_torch_get_current_xpu_stream, tensor.device_index()));
}

}  // namespace accel::xpu
