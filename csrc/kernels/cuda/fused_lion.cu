#include "kernels/cuda/multi_tensor.cuh"
// The order matters.
#include "kernels/formulas/lion.h"

namespace accel::cuda {

ACCEL_CUDA_ELEMENTWISE(Lion)

}  // namespace accel::cuda
