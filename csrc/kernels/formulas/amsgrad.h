// AMSGrad (Reddi, Kale & Kumar, 2018, arXiv:1904.09237) as torch.optim.Adam and AdamW have it: Adam, divided by the
// largest second moment so far instead of the present one. With t, g, step_size, c2 and decay as in adam.h:
//
//   exp_avg        <- beta1 * exp_avg    + (1 - beta1) * g
//   exp_avg_sq     <- beta2 * exp_avg_sq + (1 - beta2) * g * g
//   max_exp_avg_sq <- max(max_exp_avg_sq, exp_avg_sq)
//   param          <- decay * param - step_size * exp_avg / (sqrt(max_exp_avg_sq) / sqrt(c2) + eps)
//
// The maximum is of moments without their correction, which is applied to the maximum (the paper has none). Options
// and coefficients are Adam's.
#include "kernels/formulas/adam.h"

#if !defined(ACCEL_FORMULAS_AMSGRAD)
#define ACCEL_FORMULAS_AMSGRAD

namespace accel {

// Options, coefficients and kHasStep are Adam's.
struct Amsgrad : Adam {
  static constexpr const char* kName = "AMSGrad";
  static constexpr std::array<const char*, 3> kStates = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
};

}  // namespace accel

#endif  // ACCEL_FORMULAS_AMSGRAD

#if defined(ACCEL_FORMULA_NAMESPACE)
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
#endif
