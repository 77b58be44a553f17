// Adagrad (Duchi, Hazan & Singer, 2011, JMLR 12:2121), torch.optim.Adagrad's formula. With t the step, counted
// from 1, and g the gradient plus weight_decay * param:
//
//   exp_avg_sq <- exp_avg_sq + g * g
//   param      <- param - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(exp_avg_sq) + eps)
//
// The state is a sum, not an average; it has the name that Adagrad's callers know it by. adagrad_inl.h has the
// formula in code.
#pragma once

#include "common/host_device.h"

namespace accel {

struct AdagradOptions {
  double lr;
  double eps;
  double weight_decay;
  double lr_decay;
};

// The options as kernels use them at one step, one rounding to float each.
struct AdagradCoefficients {
  float minus_step_size;
  float eps;
  float l2;  // added to the gradient, times the parameter
};

// `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
ACCEL_HOST_DEVICE inline AdagradCoefficients adagrad_coefficients(const AdagradOptions& options, double step) {
  AdagradCoefficients c;
  c.minus_step_size = static_cast<float>(-options.lr / (1.0 + (step - 1.0) * options.lr_decay));
  c.eps = static_cast<float>(options.eps);
  c.l2 = static_cast<float>(options.weight_decay);
  return c;
}

}  // namespace accel
