#include "kernels/cuda/multi_tensor.cuh"
// The order matters.
#include "kernels/formulas/amsgrad.h"

namespace accel::cuda {

ACCEL_CUDA_ELEMENTWISE(Amsgrad)

}  // namespace accel::cuda
