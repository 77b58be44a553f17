// Lion (Chen et al., 2023, arXiv:2302.06675). With g the gradient:
//
//   c       =  beta1 * exp_avg + (1 - beta1) * g
//   param   <- decay * param - lr * sign(c)
//   exp_avg <- beta2 * exp_avg + (1 - beta2) * g
//
// with decay = 1 - lr * weight_decay; the sign of 0 is 0, that of NaN is NaN. lion_inl.h has it in code.
#pragma once

#include "common/host_device.h"

namespace accel {

struct LionOptions {
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
};

// The options as kernels use them, one rounding to float each.
struct LionCoefficients {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float minus_lr;
  float decay;
};

// Sets the coefficients that lr decides, and no other. Real is float on devices without double.
template <class Real>
ACCEL_HOST_DEVICE inline void set_lion_lr(LionCoefficients& c, Real lr, Real weight_decay) {
  c.minus_lr = static_cast<float>(-lr);
  c.decay = static_cast<float>(1 - lr * weight_decay);
}

ACCEL_HOST_DEVICE inline LionCoefficients lion_coefficients(const LionOptions& options) {
  LionCoefficients c;
  c.beta1 = static_cast<float>(options.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
  c.beta2 = static_cast<float>(options.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
  set_lion_lr(c, options.lr, options.weight_decay);
  return c;
}

}  // namespace accel
