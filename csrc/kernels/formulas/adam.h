// Adam (Kingma & Ba, 2015, arXiv:1412.6980) and AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101).
// With t the step, counted from 1, and g the gradient (plus weight_decay * param in L2 mode):
//
//   exp_avg    <- beta1 * exp_avg    + (1 - beta1) * g
//   exp_avg_sq <- beta2 * exp_avg_sq + (1 - beta2) * g * g
//   param      <- decay * param - step_size * exp_avg / (sqrt(exp_avg_sq) / sqrt(c2) + eps)
//
// with step_size = lr / c1, c1 = 1 - beta1^t and c2 = 1 - beta2^t (both 1 without bias correction),
// and decay = 1 - lr * weight_decay in AdamW mode, 1 in L2 mode. These are torch.optim.AdamW's and
// torch.optim.Adam's formulas; adam_inl.h has them in code.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"

namespace accel {

struct AdamOptions {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  bool adamw_mode;
  bool bias_correction;
};

// The options as kernels use them at one step, one rounding to float each.
struct AdamCoefficients {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_correction2;
  float eps;
  float minus_step_size;
  float decay;
  float l2;  // added to the gradient, times the parameter; 0 in AdamW mode
};

// Sets the coefficients that lr and the step decide, and no other. `decay_rate` is weight_decay in AdamW mode, 0 in L2
// mode. Real is float on devices without double.
template <class Real>
ACCEL_HOST_DEVICE inline void set_adam_step(AdamCoefficients& c, Real lr, Real decay_rate, Real correction1,
                                            Real inverse_sqrt_correction2) {
  c.inverse_sqrt_correction2 = static_cast<float>(inverse_sqrt_correction2);
  c.minus_step_size = static_cast<float>(-lr / correction1);
  c.decay = static_cast<float>(1 - lr * decay_rate);
}

// `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
ACCEL_HOST_DEVICE inline AdamCoefficients adam_coefficients(const AdamOptions& options, double step) {
  double correction1 = 1.0;
  double correction2 = 1.0;
  if (options.bias_correction) {
    correction1 = 1.0 - pow(options.beta1, step);
    correction2 = 1.0 - pow(options.beta2, step);
  }
  AdamCoefficients c;
  c.beta1 = static_cast<float>(options.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
  c.beta2 = static_cast<float>(options.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
  c.eps = static_cast<float>(options.eps);
  c.l2 = options.adamw_mode ? 0.0f : static_cast<float>(options.weight_decay);
  set_adam_step(c, options.lr, options.adamw_mode ? options.weight_decay : 0.0, correction1, 1.0 / sqrt(correction2));
  return c;
}

}  // namespace accel
