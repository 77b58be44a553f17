// Adam (Kingma & Ba, 2015, arXiv:1412.6980) and AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101)
// on CPU. With t the step, counted from 1, and g the gradient (plus weight_decay * param in L2 mode):
//
//   exp_avg    <- beta1 * exp_avg    + (1 - beta1) * g
//   exp_avg_sq <- beta2 * exp_avg_sq + (1 - beta2) * g * g
//   param      <- decay * param - step_size * exp_avg / (sqrt(exp_avg_sq) / sqrt(c2) + eps)
//
// with step_size = lr / c1, c1 = 1 - beta1^t and c2 = 1 - beta2^t (both 1 without bias correction),
// and decay = 1 - lr * weight_decay in AdamW mode, 1 in L2 mode. These are torch.optim.AdamW's and
// torch.optim.Adam's formulas. Arithmetic is in float32; values are rounded to their storage types
// (to nearest even) only when stored.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "kernels/cpu/isa.h"

namespace accel::cpu {

struct AdamOptions {
  std::int64_t step;  // >= 1
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  bool adamw_mode;
  bool bias_correction;
};

// The options as the kernels use them, one rounding to float each.
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

AdamCoefficients adam_coefficients(const AdamOptions& options) noexcept;

// One parameter's memory, borrowed; four separate arrays of equal length, in any alignment that the
// element types have. The two moments share one type.
struct AdamTensors {
  void* param;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
};

// Works on the elements [begin, end) of all four arrays and touches no other byte. Elements do not
// influence each other: a range may be cut anywhere and its pieces run in any order or thread, with
// the same bits as result.
using AdamKernel = void (*)(const AdamTensors& tensors, std::int64_t begin, std::int64_t end,
                            const AdamCoefficients& coefficients);

// The update for these element types; null when `isa` is not supported here or the moments are
// neither float32 nor of the parameter's type.
AdamKernel find_adam_update(Isa isa, DType param, DType grad, DType moment) noexcept;

// Undoes one update of float32 tensors, given the same coefficients and gradient; null when `isa` is
// not supported here. Needs beta1, beta2 and decay to be non-zero.
//
// Let p, m, v be the values before an update, p', m', v' after it, u = 2^-24, s = p' - decay * p
// the step taken. What comes back differs from p, m, v by at most (to first order in u, where
// nothing overflowed, and up to 2^-148 / beta absolutely where something was subnormal)
//
//   param:       u * (2 |p| + (|p'| + |s|) / |decay|)
//   exp_avg:     u * (2 |m| + |m'| / beta1)
//   exp_avg_sq:  u * (2 |v| + |v'| / beta2)
//
// The update rounds each new value once or (without fused multiply-add) twice, dividing by decay or
// beta widens that, and the result is rounded once more. The step and the gradient's share are
// recomputed to the same bits and taken away in double, so they add nothing. In L2 mode the gradient
// seen by the moments contains the old parameter, of which only the restored one is known: with
// g = grad + l2 * p and d = l2 * (param's bound) + 2u (|l2 * p| + 2 |g|), the restored parameter's
// error and the roundings on both ways, exp_avg's bound grows by (1 - beta1) / beta1 * d and
// exp_avg_sq's by (1 - beta2) / beta2 * 2 |g| d.
AdamKernel find_adam_rollback(Isa isa) noexcept;

}  // namespace accel::cpu
