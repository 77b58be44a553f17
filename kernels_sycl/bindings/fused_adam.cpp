// The fused_adam op library with SYCL kernels.

#include <cmath>

#include "bindings/sycl_optimizer.h"

namespace {

const accel::xpu::Kernel kUpdate[] = ACCEL_SYCL_FOR_STORED_TYPES(accel::xpu::fused_adam);
const accel::xpu::Kernel kAdvance = ACCEL_SYCL_KERNEL(accel::xpu::advance_steps);

struct FusedAdam : accel::Adam {
  using Numbers = accel::xpu::AdamNumbers;
  static Numbers numbers(const double* options, double step) {
    const accel::AdamOptions named = accel::Adam::options(options);
    Numbers numbers{};
    numbers.coefficients = coefficients(named, step);
    numbers.lr = static_cast<float>(named.lr);
    numbers.decay_rate = named.adamw_mode ? static_cast<float>(named.weight_decay) : 0.0f;
    numbers.correction1 = named.bias_correction ? static_cast<float>(1.0 - std::pow(named.beta1, step)) : 1.0f;
    numbers.log_beta1 = static_cast<float>(std::log(named.beta1));
    numbers.log_beta2 = static_cast<float>(std::log(named.beta2));
    numbers.bias_correction = named.bias_correction ? 1 : 0;
    return numbers;
  }
  static const accel::xpu::Kernel& kernel(const accel::multi_tensor::StoredTypes& types) {
    return kUpdate[accel::xpu::kernel_index(types)];
  }
  static const accel::xpu::Kernel& advance_steps() { return kAdvance; }
};

}  // namespace

ACCEL_SYCL_FUSED_OPTIMIZER(FusedAdam)
