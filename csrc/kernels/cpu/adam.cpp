#include "kernels/cpu/adam.h"

#include <cmath>

#include "kernels/cpu/adam_targets.h"

namespace accel::cpu {

AdamCoefficients adam_coefficients(const AdamOptions& options) noexcept {
  double correction1 = 1.0;
  double correction2 = 1.0;
  if (options.bias_correction) {
    correction1 = 1.0 - std::pow(options.beta1, static_cast<double>(options.step));
    correction2 = 1.0 - std::pow(options.beta2, static_cast<double>(options.step));
  }
  AdamCoefficients c;
  c.beta1 = static_cast<float>(options.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
  c.beta2 = static_cast<float>(options.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
  c.inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  c.eps = static_cast<float>(options.eps);
  c.minus_step_size = static_cast<float>(-options.lr / correction1);
  c.decay = options.adamw_mode ? static_cast<float>(1.0 - options.lr * options.weight_decay) : 1.0f;
  c.l2 = options.adamw_mode ? 0.0f : static_cast<float>(options.weight_decay);
  return c;
}

AdamKernel find_adam_update(Isa isa, DType param, DType grad, DType moment) noexcept {
  if (!isa_supported(isa)) {
    return nullptr;
  }
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return avx2::adam_update(param, grad, moment);
    case Isa::avx512:
      return avx512::adam_update(param, grad, moment);
#elif defined(__aarch64__)
    case Isa::neon:
      return neon::adam_update(param, grad, moment);
#endif
    default:
      return baseline::adam_update(param, grad, moment);
  }
}

AdamKernel find_adam_rollback(Isa isa) noexcept {
  if (!isa_supported(isa)) {
    return nullptr;
  }
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return avx2::adam_rollback();
    case Isa::avx512:
      return avx512::adam_rollback();
#elif defined(__aarch64__)
    case Isa::neon:
      return neon::adam_rollback();
#endif
    default:
      return baseline::adam_rollback();
  }
}

}  // namespace accel::cpu
