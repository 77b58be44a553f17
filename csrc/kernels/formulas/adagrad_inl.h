// Adagrad's formula on one vector of each array; see adagrad.h. Included as adam_inl.h is.

namespace ACCEL_FORMULA_NAMESPACE {

struct AdagradFormula {
  using Coefficients = AdagradCoefficients;
  static constexpr int kStates = 1;
  static constexpr bool kNonNegative[kStates] = {true};

  F32 minus_step_size, eps, l2;
  bool has_l2;  // not l2 = 0 alone: 0 * infinity would turn an infinite parameter's gradient to NaN

  ACCEL_INLINE explicit AdagradFormula(const AdagradCoefficients& c)
      : minus_step_size(broadcast(c.minus_step_size)),
        eps(broadcast(c.eps)),
        l2(broadcast(c.l2)),
        has_l2(c.l2 != 0.0f) {}

  ACCEL_INLINE void operator()(F32& param, F32 grad, F32 (&state)[kStates]) const {
    grad = has_l2 ? multiply_add(l2, param, grad) : grad;
    state[0] = multiply_add(grad, grad, state[0]);
    param = multiply_add(minus_step_size, grad / (square_root(state[0]) + eps), param);
  }
};

}  // namespace ACCEL_FORMULA_NAMESPACE
