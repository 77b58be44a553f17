// The formula of SGD with momentum on one vector of each array; see sgd.h. Included as adam_inl.h is.

namespace ACCEL_FORMULA_NAMESPACE {

struct SgdFormula {
  using Coefficients = SgdCoefficients;
  static constexpr int kStates = 1;
  static constexpr bool kNonNegative[kStates] = {false};

  F32 minus_lr, momentum, one_minus_dampening, l2;
  bool nesterov, starts;
  bool has_l2;  // not l2 = 0 alone: 0 * infinity would turn an infinite parameter's gradient to NaN

  ACCEL_INLINE explicit SgdFormula(const SgdCoefficients& c)
      : minus_lr(broadcast(c.minus_lr)),
        momentum(broadcast(c.momentum)),
        one_minus_dampening(broadcast(c.one_minus_dampening)),
        l2(broadcast(c.l2)),
        nesterov(c.nesterov),
        starts(c.starts),
        has_l2(c.l2 != 0.0f) {}

  ACCEL_INLINE void operator()(F32& param, F32 grad, F32 (&buffer)[kStates]) const {
    grad = has_l2 ? multiply_add(l2, param, grad) : grad;
    buffer[0] = starts ? grad : multiply_add(momentum, buffer[0], one_minus_dampening * grad);
    param = multiply_add(minus_lr, nesterov ? multiply_add(momentum, buffer[0], grad) : buffer[0], param);
  }
};

}  // namespace ACCEL_FORMULA_NAMESPACE
