// Adam over many tensors in one kernel; the formula is formulas/adam.h's.
#pragma once

#include "kernels/multi_tensor.h"
// The order matters.
#include "kernels/formulas/adam.h"

namespace accel::xpu {

struct AdamUpdate {
  using Formula = AdamFormula;

  ACCEL_INLINE static AdamCoefficients coefficients(const AdamNumbers& numbers, const Controls& controls,
                                                    const float* step) {
    AdamCoefficients result = numbers.coefficients;
    if (step == nullptr && controls.lr == nullptr) {
      return result;
    }
    const float lr = controls.lr != nullptr ? *controls.lr : numbers.lr;
    float correction1 = numbers.correction1;
    float inverse_sqrt_correction2 = result.inverse_sqrt_correction2;
    if (step != nullptr && numbers.bias_correction != 0) {
      correction1 = -sycl::expm1(numbers.log_beta1 * *step);
      inverse_sqrt_correction2 = 1.0f / sycl::sqrt(-sycl::expm1(numbers.log_beta2 * *step));
    }
    set_adam_step(result, lr, numbers.decay_rate, correction1, inverse_sqrt_correction2);
    return result;
  }
};

template <class P, class G, class S>
ACCEL_SYCL_FREE_KERNEL void fused_adam(TensorTable<5> table, AdamNumbers numbers, Controls controls) {
  update_chunk<AdamUpdate, P, G, S>(table, numbers, controls);
}

}  // namespace accel::xpu
