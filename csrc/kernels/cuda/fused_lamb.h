// LAMB over many tensors in three kernels; the formula is formulas/lamb.h's.
#pragma once

#include "kernels/cuda/multi_tensor.h"
#include "kernels/formulas/lamb.h"

namespace accel::cuda {

// Bytes of device memory, aligned to 8, that fused_lamb needs for these tensors while it runs.
std::size_t lamb_workspace_bytes(const DeviceTensor* tensors, std::size_t count, std::int64_t chunk_size) noexcept;

// Updates parameters and both moments of `count` tensors; `step` as for fused_update. Norms are summed in double, in
// chunks of `chunk_size` elements (rounded up to a multiple of kChunkUnit) in a fixed order: the same call gives
// the same bits, on every device.
int fused_lamb(const DeviceTensor* tensors, std::size_t count, const LambOptions& options, double step,
               const Controls& controls, std::int64_t chunk_size, void* workspace, void* stream) noexcept;

}  // namespace accel::cuda
