// Stochastic gradient descent with momentum (Sutskever et al., 2013, ICML), torch.optim.SGD's formula. With g the
// gradient plus weight_decay * param:
//
//   momentum_buffer <- momentum * momentum_buffer + (1 - dampening) * g,   at the first step g itself
//   param           <- param - lr * momentum_buffer,   or with nesterov
//   param           <- param - lr * (g + momentum * momentum_buffer)
//
// Without momentum there is nothing to dampen: then every step is as the first. sgd_inl.h has it in code.
#pragma once

#include "common/host_device.h"

namespace accel {

struct SgdOptions {
  double lr;
  double momentum;
  double dampening;
  double weight_decay;
  bool nesterov;
};

// The options as kernels use them at one step, one rounding to float each.
struct SgdCoefficients {
  float minus_lr;
  float momentum;
  float one_minus_dampening;
  float l2;  // added to the gradient, times the parameter
  bool nesterov;
  bool starts;  // the old buffer does not count, whatever it holds
};

// `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
ACCEL_HOST_DEVICE inline SgdCoefficients sgd_coefficients(const SgdOptions& options, double step) {
  SgdCoefficients c;
  c.minus_lr = static_cast<float>(-options.lr);
  c.momentum = static_cast<float>(options.momentum);
  c.one_minus_dampening = static_cast<float>(1.0 - options.dampening);
  c.l2 = static_cast<float>(options.weight_decay);
  c.nesterov = options.nesterov;
  c.starts = step <= 1.0 || options.momentum == 0.0;
  return c;
}

}  // namespace accel
