// Undoing an update of Adam; its `coefficients` are an AdamCoefficients.
#pragma once

#include "kernels/cpu/optimizer.h"
#include "kernels/formulas/adam.h"

namespace accel::cpu {

ACCEL_DECLARE_TARGETS(OptimizerKernel adam_rollback() noexcept)

// Undoes one update of float32 tensors with float32 states, given the same coefficients and gradients (which
// must not have been zeroed); null when `isa` is not supported here. Needs beta1, beta2 and decay to be non-zero.
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
inline OptimizerKernel find_adam_rollback(Isa isa) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, adam_rollback()) : nullptr;
}

}  // namespace accel::cpu
