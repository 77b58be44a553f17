// Lion over many tensors in one kernel; the formula is formulas/lion.h's.
#pragma once

#include "kernels/cuda/multi_tensor.h"
#include "kernels/formulas/lion.h"

namespace accel::cuda {

// Updates parameters and the moment, states[0], of `count` tensors. `chunk_size` as for fused_adam.
int fused_lion(const DeviceTensor* tensors, std::size_t count, const LionOptions& options, const Controls& controls,
               std::int64_t chunk_size, void* stream) noexcept;

}  // namespace accel::cuda
