// Adam's kernels, and those that undo an update.
#if !defined(ACCEL_TARGET_NAMESPACE)

#include "kernels/cpu/adam.h"

#define ACCEL_KERNEL "kernels/cpu/adam.cpp"
#include "kernels/cpu/each_isa.h"

#else

#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/optimizer_inl.h"
#include "kernels/formulas/adam.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

// (total - factor * share) / scale, in double.
ACCEL_INLINE F32 undo(F32 total, F32 share, double factor, double scale) {
  F32 result = total;
  for (int i = 0; i < kLanes; ++i) {
    result[i] = static_cast<float>((static_cast<double>(total[i]) - factor * static_cast<double>(share[i])) / scale);
  }
  return result;
}

// Rounding can leave a second moment just below zero, where none is; NaN passes.
ACCEL_INLINE F32 not_negative(F32 v) { return v < 0.0f ? F32{} : v; }

struct AdamReverse {
  using Coefficients = AdamCoefficients;
  static constexpr int kStates = 2;

  AdamFormula forward;
  double beta1, beta2, decay, minus_step_size;

  explicit AdamReverse(const AdamCoefficients& c)
      : forward(c), beta1(c.beta1), beta2(c.beta2), decay(c.decay), minus_step_size(c.minus_step_size) {}

  ACCEL_INLINE void operator()(F32& param, F32 grad, F32 (&moment)[kStates]) const {
    param = undo(param, forward.direction(moment[0], moment[1]), minus_step_size, decay);
    grad = forward.decayed_grad(param, grad);
    moment[0] = undo(moment[0], forward.first_moment_share(grad), 1.0, beta1);
    moment[1] = not_negative(undo(moment[1], forward.second_moment_share(grad), 1.0, beta2));
  }
};

}  // namespace

template <>
OptimizerKernel update_kernels<Adam>(const StoredTypes& types) noexcept {
  return optimizer_kernel<AdamFormula>(types);
}

OptimizerKernel adam_rollback() noexcept { return update_plain<AdamReverse, float, float, float>; }

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE

#endif
