// AMSGrad over many tensors in one kernel; the formula is formulas/amsgrad.h's.
#pragma once

#include "kernels/cuda/multi_tensor.h"
#include "kernels/formulas/amsgrad.h"

namespace accel::cuda {

// Updates parameters, both moments and the largest second moment, states[2], of `count` tensors. All else as for
// fused_adam.
int fused_amsgrad(const DeviceTensor* tensors, std::size_t count, const AdamOptions& options, double step,
                  const Controls& controls, std::int64_t chunk_size, void* stream) noexcept;

}  // namespace accel::cuda
