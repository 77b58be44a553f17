// LAMB (You et al., 2020, arXiv:1904.00962, algorithm 2). With t the step, counted from 1, g the gradient and
// norms taken over one tensor:
//
//   exp_avg    <- beta1 * exp_avg    + (1 - beta1) * g
//   exp_avg_sq <- beta2 * exp_avg_sq + (1 - beta2) * g * g
//   u           = (exp_avg / c1) / (sqrt(exp_avg_sq) / sqrt(c2) + eps) + weight_decay * param
//   param      <- param - lr * trust * u,   trust = |param| / |u| where both are above 0, else 1
//
// with c1 = 1 - beta1^t and c2 = 1 - beta2^t (both 1 without bias correction).
#if !defined(ACCEL_FORMULAS_LAMB)
#define ACCEL_FORMULAS_LAMB

#include <array>
#include <cmath>

#include "common/host_device.h"

namespace accel {

struct LambOptions {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  bool bias_correction;
};

// The options as kernels use them at one step, one rounding to float each.
struct LambCoefficients {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_correction1;
  float inverse_sqrt_correction2;
  float eps;
  float weight_decay;
  float minus_lr;
};

// The declaration; adam.h says what its members mean.
struct Lamb {
  using Options = LambOptions;
  using Coefficients = LambCoefficients;
  static constexpr const char* kName = "LAMB";
  static constexpr std::array<const char*, 2> kStates = {"exp_avg", "exp_avg_sq"};
  static constexpr std::array<const char*, 6> kOptions = {"lr=1e-3",  "beta1=0.9",      "beta2=0.999",
                                                          "eps=1e-6", "weight_decay=0", "bias_correction"};
  static constexpr bool kHasStep = true;
  static constexpr bool kIsTwoPass = true;

  static Options options(const double* values) {
    return {values[0], values[1], values[2], values[3], values[4], values[5] != 0};
  }
  // `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
  ACCEL_HOST_DEVICE static Coefficients coefficients(const Options& options, double step) {
    double correction1 = 1.0;
    double correction2 = 1.0;
    if (options.bias_correction) {
      correction1 = 1.0 - pow(options.beta1, step);
      correction2 = 1.0 - pow(options.beta2, step);
    }
    LambCoefficients c;
    c.beta1 = static_cast<float>(options.beta1);
    c.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
    c.beta2 = static_cast<float>(options.beta2);
    c.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
    c.inverse_correction1 = static_cast<float>(1.0 / correction1);
    c.inverse_sqrt_correction2 = static_cast<float>(1.0 / sqrt(correction2));
    c.eps = static_cast<float>(options.eps);
    c.weight_decay = static_cast<float>(options.weight_decay);
    c.minus_lr = static_cast<float>(-options.lr);
    return c;
  }
  // What the step of one tensor is multiplied by: |param| / |u| of their sums of squares; 1 where either is 0 or not a
  // number.
  ACCEL_HOST_DEVICE static float factor(double param_squares, double direction_squares) {
    const bool usable = param_squares > 0.0 && direction_squares > 0.0;
    return usable ? static_cast<float>(sqrt(param_squares) / sqrt(direction_squares)) : 1.0f;
  }
};

}  // namespace accel

#endif  // ACCEL_FORMULAS_LAMB

// Two passes: the norms of the parameter and of the direction over the whole tensor lie between update_moments and
// apply.
#if defined(ACCEL_FORMULA_NAMESPACE)
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
#endif
