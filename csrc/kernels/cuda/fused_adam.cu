#include "kernels/cuda/multi_tensor.cuh"
// The order matters.
#include "kernels/formulas/adam.h"

namespace accel::cuda {

ACCEL_CUDA_ELEMENTWISE(Adam)

}  // namespace accel::cuda
