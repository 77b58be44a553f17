// The fused_lion op library with SYCL kernels.

#include "bindings/sycl_optimizer.h"

namespace {

const accel::xpu::Kernel kUpdate[] = ACCEL_SYCL_FOR_STORED_TYPES(accel::xpu::fused_lion);
const accel::xpu::Kernel kAdvance = ACCEL_SYCL_KERNEL(accel::xpu::advance_steps);

struct FusedLion : accel::Lion {
  using Numbers = accel::xpu::LionNumbers;
  static Numbers numbers(const double* options, double) {
    return {coefficients(accel::Lion::options(options)), static_cast<float>(options[3])};
  }
  static const accel::xpu::Kernel& kernel(const accel::multi_tensor::StoredTypes& types) {
    return kUpdate[accel::xpu::kernel_index(types)];
  }
  static const accel::xpu::Kernel& advance_steps() { return kAdvance; }
};

}  // namespace

ACCEL_SYCL_FUSED_OPTIMIZER(FusedLion)
