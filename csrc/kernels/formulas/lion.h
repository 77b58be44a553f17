// Lion (Chen et al., 2023, arXiv:2302.06675). With g the gradient:
//
//   c       =  beta1 * exp_avg + (1 - beta1) * g
//   param   <- decay * param - lr * sign(c)
//   exp_avg <- beta2 * exp_avg + (1 - beta2) * g
//
// with decay = 1 - lr * weight_decay; the sign of 0 is 0, that of NaN is NaN.
#if !defined(ACCEL_FORMULAS_LION)
#define ACCEL_FORMULAS_LION

#include <array>

#include "common/host_device.h"

namespace accel {

struct LionOptions {
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
};

// The options as kernels use them, one rounding to float each.
struct LionCoefficients {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float minus_lr;
  float decay;
};

// Sets the coefficients that lr decides, and no other. Real is float on devices without double.
template <class Real>
ACCEL_HOST_DEVICE inline void set_lion_lr(LionCoefficients& c, Real lr, Real weight_decay) {
  c.minus_lr = static_cast<float>(-lr);
  c.decay = static_cast<float>(1 - lr * weight_decay);
}

// The declaration; adam.h says what its members mean.
struct Lion {
  using Options = LionOptions;
  using Coefficients = LionCoefficients;
  static constexpr const char* kName = "Lion";
  static constexpr std::array<const char*, 1> kStates = {"exp_avg"};
  static constexpr std::array<const char*, 4> kOptions = {"lr=1e-3", "beta1=0.9", "beta2=0.999", "weight_decay=0"};
  static constexpr bool kHasStep = false;
  static constexpr bool kIsTwoPass = false;

  static Options options(const double* values) { return {values[0], values[1], values[2], values[3]}; }
  ACCEL_HOST_DEVICE static Coefficients coefficients(const Options& options, double /*step*/ = 1.0) {
    LionCoefficients c;
    c.beta1 = static_cast<float>(options.beta1);
    c.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
    c.beta2 = static_cast<float>(options.beta2);
    c.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
    set_lion_lr(c, options.lr, options.weight_decay);
    return c;
  }
};

}  // namespace accel

#endif  // ACCEL_FORMULAS_LION

#if defined(ACCEL_FORMULA_NAMESPACE)
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
#endif
