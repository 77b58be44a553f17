// Adam over many tensors in one kernel; the formula is formulas/adam.h's.
#pragma once

#include "kernels/cuda/multi_tensor.h"
#include "kernels/formulas/adam.h"

namespace accel::cuda {

// Updates parameters and both moments of `count` tensors. The step is each tensor's own counter (see
// advance_steps) or, where that is null, `step`, counted from 1. A block works on at most `chunk_size` elements
// of a tensor before it goes on to the next; results do not depend on it.
int fused_adam(const DeviceTensor* tensors, std::size_t count, const AdamOptions& options, double step,
               const Controls& controls, std::int64_t chunk_size, void* stream) noexcept;

}  // namespace accel::cuda
