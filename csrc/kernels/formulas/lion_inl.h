// Lion's formula on one vector of each array; see lion.h. Included as adam_inl.h is; the platform defines besides
//   sign_of(v)   -1, 0 or 1 for each element; NaN stays NaN

namespace ACCEL_FORMULA_NAMESPACE {

struct LionFormula {
  using Coefficients = LionCoefficients;
  static constexpr int kStates = 1;
  static constexpr bool kNonNegative[kStates] = {false};

  F32 beta1, one_minus_beta1, beta2, one_minus_beta2, minus_lr, decay;

  ACCEL_INLINE explicit LionFormula(const LionCoefficients& c)
      : beta1(broadcast(c.beta1)),
        one_minus_beta1(broadcast(c.one_minus_beta1)),
        beta2(broadcast(c.beta2)),
        one_minus_beta2(broadcast(c.one_minus_beta2)),
        minus_lr(broadcast(c.minus_lr)),
        decay(broadcast(c.decay)) {}

  ACCEL_INLINE void operator()(F32& param, F32 grad, F32 (&moment)[kStates]) const {
    const F32 direction = sign_of(multiply_add(beta1, moment[0], one_minus_beta1 * grad));
    param = multiply_add(minus_lr, direction, decay * param);
    moment[0] = multiply_add(beta2, moment[0], one_minus_beta2 * grad);
  }
};

}  // namespace ACCEL_FORMULA_NAMESPACE
