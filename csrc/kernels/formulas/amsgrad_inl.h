// AMSGrad's formula on one vector of each array; see amsgrad.h. Included as adam_inl.h is, and after it.

namespace ACCEL_FORMULA_NAMESPACE {

struct AmsgradFormula {
  using Coefficients = AdamCoefficients;
  static constexpr int kStates = 3;
  static constexpr bool kNonNegative[kStates] = {false, true, true};

  AdamFormula adam;

  ACCEL_INLINE explicit AmsgradFormula(const AdamCoefficients& c) : adam(c) {}

  // NaN where either is: a lost moment must not hide behind an old maximum.
  static ACCEL_INLINE F32 larger(F32 a, F32 b) { return a > b ? a : (a != a ? a : b); }

  ACCEL_INLINE void operator()(F32& param, F32 grad, F32 (&moment)[kStates]) const {
    grad = adam.decayed_grad(param, grad);
    moment[0] = multiply_add(adam.beta1, moment[0], adam.first_moment_share(grad));
    moment[1] = multiply_add(adam.beta2, moment[1], adam.second_moment_share(grad));
    moment[2] = larger(moment[2], moment[1]);
    param = multiply_add(adam.minus_step_size, adam.direction(moment[0], moment[2]), adam.decay * param);
  }
};

}  // namespace ACCEL_FORMULA_NAMESPACE
