// LAMB's formula on one vector of each array; see lamb.h. Included as adam_inl.h is. Two passes: the norms of
// the parameter and of the direction over the whole tensor lie between update_moments and apply.

namespace ACCEL_FORMULA_NAMESPACE {

struct LambFormula {
  using Coefficients = LambCoefficients;
  static constexpr int kStates = 2;
  static constexpr bool kNonNegative[kStates] = {false, true};

  F32 beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_correction1, inverse_sqrt_correction2, eps, weight_decay;
  bool has_decay;  // not weight_decay = 0 alone: 0 * infinity would make an infinite parameter's direction NaN

  ACCEL_INLINE explicit LambFormula(const LambCoefficients& c)
      : beta1(broadcast(c.beta1)),
        one_minus_beta1(broadcast(c.one_minus_beta1)),
        beta2(broadcast(c.beta2)),
        one_minus_beta2(broadcast(c.one_minus_beta2)),
        inverse_correction1(broadcast(c.inverse_correction1)),
        inverse_sqrt_correction2(broadcast(c.inverse_sqrt_correction2)),
        eps(broadcast(c.eps)),
        weight_decay(broadcast(c.weight_decay)),
        has_decay(c.weight_decay != 0.0f) {}

  // First pass.
  ACCEL_INLINE void update_moments(F32 grad, F32 (&moment)[kStates]) const {
    moment[0] = multiply_add(beta1, moment[0], one_minus_beta1 * grad);
    moment[1] = multiply_add(beta2, moment[1], (one_minus_beta2 * grad) * grad);
  }

  // Both passes, of the moments as they are stored: so both see the same direction to the bit, also where
  // storing rounds.
  ACCEL_INLINE F32 direction(F32 param, const F32 (&moment)[kStates]) const {
    const F32 denominator = multiply_add(square_root(moment[1]), inverse_sqrt_correction2, eps);
    const F32 adaptive = (moment[0] * inverse_correction1) / denominator;
    return has_decay ? multiply_add(weight_decay, param, adaptive) : adaptive;
  }

  // Second pass; minus_step is -lr times the trust ratio.
  ACCEL_INLINE static F32 apply(F32 minus_step, F32 param, F32 direction) {
    return multiply_add(minus_step, direction, param);
  }
};

}  // namespace ACCEL_FORMULA_NAMESPACE
