// Adam's formula and its reverse. Included between simd_begin.h and simd_end.h, after adam_targets.h.

#include "kernels/cpu/elementwise_inl.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

struct AdamFormula {
  static constexpr int kStates = 2;

  F32 beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps, minus_step_size, decay, l2;
  bool has_l2;  // not l2 = 0 alone: 0 * infinity would turn an infinite parameter's gradient to NaN

  explicit AdamFormula(const AdamCoefficients& c)
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

template <class Formula, class P, class G, class M>
void run(const AdamTensors& tensors, std::int64_t begin, std::int64_t end, const AdamCoefficients& coefficients) {
  M* const moments[] = {static_cast<M*>(tensors.exp_avg), static_cast<M*>(tensors.exp_avg_sq)};
  update_range(Formula(coefficients), static_cast<P*>(tensors.param), static_cast<const G*>(tensors.grad), moments,
               begin, end);
}

template <class P, class M>
AdamKernel update_for_grad(DType grad) {
  switch (grad) {
    case DType::float32:
      return run<AdamFormula, P, float, M>;
    case DType::bfloat16:
      return run<AdamFormula, P, BFloat16, M>;
    case DType::float16:
      return run<AdamFormula, P, Float16, M>;
  }
  return nullptr;
}

template <class P>
AdamKernel update_for_moment(DType param, DType grad, DType moment) {
  if (moment == DType::float32) {
    return update_for_grad<P, float>(grad);
  }
  return moment == param ? update_for_grad<P, P>(grad) : nullptr;
}

}  // namespace

AdamKernel adam_update(DType param, DType grad, DType moment) noexcept {
  switch (param) {
    case DType::float32:
      return update_for_moment<float>(param, grad, moment);
    case DType::bfloat16:
      return update_for_moment<BFloat16>(param, grad, moment);
    case DType::float16:
      return update_for_moment<Float16>(param, grad, moment);
  }
  return nullptr;
}

AdamKernel adam_rollback() noexcept { return run<AdamReverse, float, float, float>; }

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
