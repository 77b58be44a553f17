// Stochastic gradient descent with momentum (Sutskever et al., 2013, ICML), torch.optim.SGD's formula. With g the
// gradient plus weight_decay * param:
//
//   momentum_buffer <- momentum * momentum_buffer + (1 - dampening) * g,   at the first step g itself
//   param           <- param - lr * momentum_buffer,   or with nesterov
//   param           <- param - lr * (g + momentum * momentum_buffer)
//
// Without momentum there is nothing to dampen: then every step is as the first.
#if !defined(ACCEL_FORMULAS_SGD)
#define ACCEL_FORMULAS_SGD

#include <array>

#include "common/host_device.h"

namespace accel {

struct SgdOptions {
  double lr;
  double momentum;
  double dampening;
  double weight_decay;
  bool nesterov;
};

// The options as kernels use them at one step, one rounding to float each.
struct SgdCoefficients {
  float minus_lr;
  float momentum;
  float one_minus_dampening;
  float l2;  // added to the gradient, times the parameter
  bool nesterov;
  bool starts;  // the old buffer does not count, whatever it holds
};

// The declaration; adam.h says what its members mean.
struct Sgd {
  using Options = SgdOptions;
  using Coefficients = SgdCoefficients;
  static constexpr const char* kName = "SGD";
  static constexpr std::array<const char*, 1> kStates = {"momentum_buffer"};
  static constexpr std::array<const char*, 5> kOptions = {"lr=1e-3", "momentum=0.9", "dampening=0", "weight_decay=0",
                                                          "nesterov=false"};
  static constexpr bool kHasStep = true;
  static constexpr bool kIsTwoPass = false;

  static Options options(const double* values) { return {values[0], values[1], values[2], values[3], values[4] != 0}; }
  // `step` counts from 1; it is a double because a GPU keeps it in a tensor of floats.
  ACCEL_HOST_DEVICE static Coefficients coefficients(const Options& options, double step) {
    SgdCoefficients c;
    c.minus_lr = static_cast<float>(-options.lr);
    c.momentum = static_cast<float>(options.momentum);
    c.one_minus_dampening = static_cast<float>(1.0 - options.dampening);
    c.l2 = static_cast<float>(options.weight_decay);
    c.nesterov = options.nesterov;
    c.starts = step <= 1.0 || options.momentum == 0.0;
    return c;
  }
};

}  // namespace accel

#endif  // ACCEL_FORMULAS_SGD

#if defined(ACCEL_FORMULA_NAMESPACE)
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
#endif
