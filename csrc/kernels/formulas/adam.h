// Adam (Kingma & Ba, 2015, arXiv:1412.6980) and AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101).
// With t the step, counted from 1, and g the gradient (plus weight_decay * param in L2 mode):
//
//   exp_avg    <- beta1 * exp_avg    + (1 - beta1) * g
//   exp_avg_sq <- beta2 * exp_avg_sq + (1 - beta2) * g * g
//   param      <- decay * param - step_size * exp_avg / (sqrt(exp_avg_sq) / sqrt(c2) + eps)
//
// with step_size = lr / c1, c1 = 1 - beta1^t and c2 = 1 - beta2^t (both 1 without bias correction),
// and decay = 1 - lr * weight_decay in AdamW mode, 1 in L2 mode. These are torch.optim.AdamW's and
// torch.optim.Adam's formulas.
//
// Every formula header has two parts. The first is read once: options, coefficients, and the declaration that bindings
// and kernels of every device are made from. The second is the formula on one vector of each array. It is read where
// ACCEL_FORMULA_NAMESPACE is defined, once for each instruction set or device, which defines in that namespace
//   F32                          a vector of floats with + - * / (on a GPU one float)
//   broadcast(float)  multiply_add(a, b, c)  square_root(v)  sign_of(v): -1, 0 or 1; NaN stays NaN
//   ACCEL_INLINE                 what makes a function inline (and a device function)
// so that the CPU's instruction sets, CUDA and SYCL share one formula. Include the header before that, too: the first
// part must not be compiled for a special instruction set.
#if !defined(ACCEL_FORMULAS_ADAM)
#define ACCEL_FORMULAS_ADAM

#include <array>
#include <cmath>
#include <cstdint>

#include "common/host_device.h"

namespace accel {

struct AdamOptions {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  bool adamw_mode;
  bool bias_correction;
};

// The options as kernels use them at one step, one rounding to float each.
struct AdamCoefficients {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_correction2;
  float eps;
  float minus_step_size;
  float decay;
  float l2;  // added to the gradient, times the parameter; 0 in AdamW mode
};

// Sets the coefficients that lr and the step decide, and no other. `decay_rate` is weight_decay in AdamW mode, 0 in L2
// mode. Real is float on devices without double.
template <class Real>
ACCEL_HOST_DEVICE inline void set_adam_step(AdamCoefficients& c, Real lr, Real decay_rate, Real correction1,
                                            Real inverse_sqrt_correction2) {
  c.inverse_sqrt_correction2 = static_cast<float>(inverse_sqrt_correction2);
  c.minus_step_size = static_cast<float>(-lr / correction1);
  c.decay = static_cast<float>(1 - lr * decay_rate);
}

// `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
ACCEL_HOST_DEVICE inline AdamCoefficients adam_coefficients(const AdamOptions& options, double step) {
  double correction1 = 1.0;
  double correction2 = 1.0;
  if (options.bias_correction) {
    correction1 = 1.0 - pow(options.beta1, step);
    correction2 = 1.0 - pow(options.beta2, step);
  }
  AdamCoefficients c;
  c.beta1 = static_cast<float>(options.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
  c.beta2 = static_cast<float>(options.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
  c.eps = static_cast<float>(options.eps);
  c.l2 = options.adamw_mode ? 0.0f : static_cast<float>(options.weight_decay);
  set_adam_step(c, options.lr, options.adamw_mode ? options.weight_decay : 0.0, correction1, 1.0 / sqrt(correction2));
  return c;
}

// The declaration.
//   kName       for messages
//   kStates     roles of the states, for messages
//   kOptions    the numbers that an update takes, in their order; `options` gives them their places. The functions of
//               one tensor take "name=default" when an optimizer is created and, except true or false, with each
//               update; they take "name" with each update, and never "name:default"
//   kHasStep    whether the coefficients depend on the step, which counts from 1
//   kIsTwoPass  whether the step depends on norms over whole tensors; see TwoPassKernels in kernels/cpu/optimizer.h
struct Adam {
  using Options = AdamOptions;
  using Coefficients = AdamCoefficients;
  static constexpr const char* kName = "Adam";
  static constexpr std::array<const char*, 2> kStates = {"exp_avg", "exp_avg_sq"};
  static constexpr std::array<const char*, 7> kOptions = {
      "lr=1e-3", "beta1=0.9", "beta2=0.999", "eps=1e-8", "weight_decay=0", "adamw_mode=true", "bias_correction"};
  static constexpr bool kHasStep = true;
  static constexpr bool kIsTwoPass = false;

  static Options options(const double* values) {
    return {values[0], values[1], values[2], values[3], values[4], values[5] != 0, values[6] != 0};
  }
  ACCEL_HOST_DEVICE static Coefficients coefficients(const Options& options, double step) {
    return adam_coefficients(options, step);
  }
};

}  // namespace accel

#endif  // ACCEL_FORMULAS_ADAM

#if defined(ACCEL_FORMULA_NAMESPACE)
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
#endif
