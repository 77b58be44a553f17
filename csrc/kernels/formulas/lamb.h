// LAMB (You et al., 2020, arXiv:1904.00962, algorithm 2). With t the step, counted from 1, g the gradient and
// norms taken over one tensor:
//
//   exp_avg    <- beta1 * exp_avg    + (1 - beta1) * g
//   exp_avg_sq <- beta2 * exp_avg_sq + (1 - beta2) * g * g
//   u           = (exp_avg / c1) / (sqrt(exp_avg_sq) / sqrt(c2) + eps) + weight_decay * param
//   param      <- param - lr * trust * u,   trust = |param| / |u| where both are above 0, else 1
//
// with c1 = 1 - beta1^t and c2 = 1 - beta2^t (both 1 without bias correction). lamb_inl.h has it in code.
#pragma once

#include <cmath>

#include "common/host_device.h"

namespace accel {

struct LambOptions {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  bool bias_correction;
};

// The options as kernels use them at one step, one rounding to float each.
struct LambCoefficients {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_correction1;
  float inverse_sqrt_correction2;
  float eps;
  float weight_decay;
  float minus_lr;
};

// `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
ACCEL_HOST_DEVICE inline LambCoefficients lamb_coefficients(const LambOptions& options, double step) {
  double correction1 = 1.0;
  double correction2 = 1.0;
  if (options.bias_correction) {
    correction1 = 1.0 - pow(options.beta1, step);
    correction2 = 1.0 - pow(options.beta2, step);
  }
  LambCoefficients c;
  c.beta1 = static_cast<float>(options.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
  c.beta2 = static_cast<float>(options.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
  c.inverse_correction1 = static_cast<float>(1.0 / correction1);
  c.inverse_sqrt_correction2 = static_cast<float>(1.0 / sqrt(correction2));
  c.eps = static_cast<float>(options.eps);
  c.weight_decay = static_cast<float>(options.weight_decay);
  c.minus_lr = static_cast<float>(-options.lr);
  return c;
}

// |param| / |u| of their sums of squares; 1 where either is 0 or not a number.
ACCEL_HOST_DEVICE inline float lamb_trust_ratio(double param_squares, double direction_squares) {
  const bool usable = param_squares > 0.0 && direction_squares > 0.0;
  return usable ? static_cast<float>(sqrt(param_squares) / sqrt(direction_squares)) : 1.0f;
}

}  // namespace accel
