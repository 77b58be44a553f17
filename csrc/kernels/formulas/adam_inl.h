// Adam's formula on one vector of each array; see adam.h. A platform includes this file inside
// namespace ACCEL_FORMULA_NAMESPACE's target code, after defining there
//   F32                          a vector of floats with + - * / (on a GPU one float)
//   broadcast(float)  multiply_add(a, b, c)  square_root(v)
//   ACCEL_INLINE                 what makes a function inline (and a device function)
// so the CPU's instruction sets, CUDA and SYCL share one formula.

namespace ACCEL_FORMULA_NAMESPACE {

struct AdamFormula {
  using Coefficients = AdamCoefficients;
  static constexpr int kStates = 2;
  static constexpr bool kNonNegative[kStates] = {false, true};

  F32 beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps, minus_step_size, decay, l2;
  bool has_l2;  // not l2 = 0 alone: 0 * infinity would turn an infinite parameter's gradient to NaN

  ACCEL_INLINE explicit AdamFormula(const AdamCoefficients& c)
      : beta1(broadcast(c.beta1)),
        one_minus_beta1(broadcast(c.one_minus_beta1)),
        beta2(broadcast(c.beta2)),
        one_minus_beta2(broadcast(c.one_minus_beta2)),
        inverse_sqrt_correction2(broadcast(c.inverse_sqrt_correction2)),
        eps(broadcast(c.eps)),
        minus_step_size(broadcast(c.minus_step_size)),
        decay(broadcast(c.decay)),
        l2(broadcast(c.l2)),
        has_l2(c.l2 != 0.0f) {}

  // The pieces that the update and its reverse must compute to the same bits.
  ACCEL_INLINE F32 decayed_grad(F32 param, F32 grad) const { return has_l2 ? multiply_add(l2, param, grad) : grad; }
  ACCEL_INLINE F32 first_moment_share(F32 grad) const { return one_minus_beta1 * grad; }
  ACCEL_INLINE F32 second_moment_share(F32 grad) const { return (one_minus_beta2 * grad) * grad; }
  ACCEL_INLINE F32 direction(F32 exp_avg, F32 exp_avg_sq) const {
    return exp_avg / multiply_add(square_root(exp_avg_sq), inverse_sqrt_correction2, eps);
  }

  ACCEL_INLINE void operator()(F32& param, F32 grad, F32 (&moment)[kStates]) const {
    grad = decayed_grad(param, grad);
    moment[0] = multiply_add(beta1, moment[0], first_moment_share(grad));
    moment[1] = multiply_add(beta2, moment[1], second_moment_share(grad));
    param = multiply_add(minus_step_size, direction(moment[0], moment[1]), decay * param);
  }
};

}  // namespace ACCEL_FORMULA_NAMESPACE
