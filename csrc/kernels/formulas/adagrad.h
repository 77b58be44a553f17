// Adagrad (Duchi, Hazan & Singer, 2011, JMLR 12:2121), torch.optim.Adagrad's formula. With t the step, counted
// from 1, and g the gradient plus weight_decay * param:
//
//   exp_avg_sq <- exp_avg_sq + g * g
//   param      <- param - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(exp_avg_sq) + eps)
//
// The state is a sum, not an average; it has the name that Adagrad's callers know it by.
#if !defined(ACCEL_FORMULAS_ADAGRAD)
#define ACCEL_FORMULAS_ADAGRAD

#include <array>

#include "common/host_device.h"

namespace accel {

struct AdagradOptions {
  double lr;
  double eps;
  double weight_decay;
  double lr_decay;
};

// The options as kernels use them at one step, one rounding to float each.
struct AdagradCoefficients {
  float minus_step_size;
  float eps;
  float l2;  // added to the gradient, times the parameter
};

// The declaration; adam.h says what its members mean.
struct Adagrad {
  using Options = AdagradOptions;
  using Coefficients = AdagradCoefficients;
  static constexpr const char* kName = "Adagrad";
  static constexpr std::array<const char*, 1> kStates = {"exp_avg_sq"};
  static constexpr std::array<const char*, 4> kOptions = {"lr=1e-2", "eps=1e-8", "weight_decay=0", "lr_decay:0"};
  static constexpr bool kHasStep = true;
  static constexpr bool kIsTwoPass = false;

  static Options options(const double* values) { return {values[0], values[1], values[2], values[3]}; }
  // `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
  ACCEL_HOST_DEVICE static Coefficients coefficients(const Options& options, double step) {
    AdagradCoefficients c;
    c.minus_step_size = static_cast<float>(-options.lr / (1.0 + (step - 1.0) * options.lr_decay));
    c.eps = static_cast<float>(options.eps);
    c.l2 = static_cast<float>(options.weight_decay);
    return c;
  }
};

}  // namespace accel

#endif  // ACCEL_FORMULAS_ADAGRAD

#if defined(ACCEL_FORMULA_NAMESPACE)
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
#endif
