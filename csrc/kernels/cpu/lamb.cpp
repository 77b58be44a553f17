// LAMB's two kernels.
#if !defined(ACCEL_TARGET_NAMESPACE)

#include <cstddef>

#include "kernels/cpu/optimizer.h"
#include "kernels/formulas/lamb.h"

#define ACCEL_KERNEL "kernels/cpu/lamb.cpp"
#include "kernels/cpu/each_isa.h"

#else

#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/double_inl.h"
#include "kernels/cpu/optimizer_inl.h"
#include "kernels/formulas/lamb.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

struct VectorSums {
  F64 param = {};
  F64 direction = {};

  ACCEL_INLINE static void add_squares(F64& sum, F32 v) {
    const F64 low = low_half(v);
    const F64 high = high_half(v);
    sum += low * low + high * high;
  }
};

// `v` with zeros from element `count` on.
ACCEL_INLINE F32 first_lanes(F32 v, std::int64_t count) {
  return count <= 0 ? F32{} : (lane_numbers() < static_cast<std::uint32_t>(count) ? v : F32{});
}

// Updates the moments of `count` elements, and of zeros beyond them up to a whole block. Not inlined, as
// update_rows is not.
template <class P, class G, class S>
__attribute__((noinline)) void measure_rows(const LambFormula& formula, F32 grad_scale, const P* param, const G* grad,
                                            S* exp_avg, S* exp_avg_sq, std::int64_t count, VectorSums& sums) {
  const LambFormula in_registers = formula;
  VectorSums total = sums;
  for (std::int64_t i = 0; i < count; i += kRow) {
    __builtin_prefetch(param + i + kPrefetchElements, 0);
    __builtin_prefetch(grad + i + kPrefetchElements, 0);
    __builtin_prefetch(exp_avg + i + kPrefetchElements, 1);
    __builtin_prefetch(exp_avg_sq + i + kPrefetchElements, 1);
    for (std::int64_t j = i; j < i + kRow; j += kLanes) {
      F32 moment[] = {load(exp_avg + j), load(exp_avg_sq + j)};
      in_registers.update_moments(grad_scale * load(grad + j), moment);
      store(exp_avg + j, moment[0]);
      store(exp_avg_sq + j, moment[1]);
      // As they are stored, because the second pass reads only those.
      const F32 stored[] = {load(exp_avg + j), load(exp_avg_sq + j)};
      const F32 param_value = load(param + j);
      F32 direction = in_registers.direction(param_value, stored);
      if (j + kLanes > count) {  // with eps = 0 the zeros have no direction
        direction = first_lanes(direction, count - j);
      }
      VectorSums::add_squares(total.param, param_value);
      VectorSums::add_squares(total.direction, direction);
    }
  }
  sums = total;
}

template <class P, class S>
__attribute__((noinline)) void apply_rows(const LambFormula& formula, F32 minus_step, P* param, const S* exp_avg,
                                          const S* exp_avg_sq, std::int64_t count) {
  const LambFormula in_registers = formula;
  for (std::int64_t i = 0; i < count; i += kRow) {
    __builtin_prefetch(param + i + kPrefetchElements, 1);
    __builtin_prefetch(exp_avg + i + kPrefetchElements, 0);
    __builtin_prefetch(exp_avg_sq + i + kPrefetchElements, 0);
    for (std::int64_t j = i; j < i + kRow; j += kLanes) {
      const F32 stored[] = {load(exp_avg + j), load(exp_avg_sq + j)};
      const F32 param_value = load(param + j);
      store(param + j, LambFormula::apply(minus_step, param_value, in_registers.direction(param_value, stored)));
    }
  }
}

template <class P, class G, class S>
SquareSums measure(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end, const void* coefficients,
                   const Pass& pass) {
  const LambFormula formula(*static_cast<const LambCoefficients*>(coefficients));
  const F32 grad_scale = broadcast(pass.grad_scale);
  const P* const param = static_cast<const P*>(tensors.param);
  const G* const grad = static_cast<const G*>(tensors.grad);
  S* const exp_avg = static_cast<S*>(tensors.states[0]);
  S* const exp_avg_sq = static_cast<S*>(tensors.states[1]);
  const std::int64_t rest = (end - begin) % kRow;
  const std::int64_t middle = end - rest;
  VectorSums sums;
  measure_rows(formula, grad_scale, param + begin, grad + begin, exp_avg + begin, exp_avg_sq + begin, middle - begin,
               sums);
  if (rest != 0) {
    PaddedRest<P> param_rest;
    PaddedRest<G> grad_rest;
    PaddedRest<S> exp_avg_rest;
    PaddedRest<S> exp_avg_sq_rest;
    param_rest.read(param + middle, rest);
    grad_rest.read(grad + middle, rest);
    exp_avg_rest.read(exp_avg + middle, rest);
    exp_avg_sq_rest.read(exp_avg_sq + middle, rest);
    measure_rows(formula, grad_scale, param_rest.values, grad_rest.values, exp_avg_rest.values, exp_avg_sq_rest.values,
                 rest, sums);
    exp_avg_rest.write(exp_avg + middle, rest);
    exp_avg_sq_rest.write(exp_avg_sq + middle, rest);
  }
  if (pass.zero_grads) {
    clear_grads(tensors, begin, end);
  }
  return {sum_of_lanes(sums.param), sum_of_lanes(sums.direction)};
}

template <class P, class S>
void apply(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end, const void* coefficients,
           float factor) {
  const LambCoefficients& given = *static_cast<const LambCoefficients*>(coefficients);
  const LambFormula formula(given);
  const F32 minus_step = broadcast(given.minus_lr * factor);
  P* const param = static_cast<P*>(tensors.param);
  const S* const exp_avg = static_cast<const S*>(tensors.states[0]);
  const S* const exp_avg_sq = static_cast<const S*>(tensors.states[1]);
  const std::int64_t rest = (end - begin) % kRow;
  const std::int64_t middle = end - rest;
  apply_rows(formula, minus_step, param + begin, exp_avg + begin, exp_avg_sq + begin, middle - begin);
  if (rest != 0) {
    PaddedRest<P> param_rest;
    PaddedRest<S> exp_avg_rest;
    PaddedRest<S> exp_avg_sq_rest;
    param_rest.read(param + middle, rest);
    exp_avg_rest.read(exp_avg + middle, rest);
    exp_avg_sq_rest.read(exp_avg_sq + middle, rest);
    apply_rows(formula, minus_step, param_rest.values, exp_avg_rest.values, exp_avg_sq_rest.values, rest);
    param_rest.write(param + middle, rest);
  }
  write_copy<P>(tensors, begin, end);
}

}  // namespace

template <>
TwoPassKernels update_kernels<Lamb>(const StoredTypes& types) noexcept {
  return with_element(types.param, [&](auto param) {
    return with_element(types.grad, [&](auto grad) -> TwoPassKernels {
      using P = decltype(param);
      using G = decltype(grad);
      switch (types.state) {
        case StateStorage::float32:
          return {measure<P, G, float>, apply<P, float>};
        case StateStorage::as_param:
          return {measure<P, G, P>, apply<P, P>};
        default:
          return {};
      }
    });
  });
}

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE

#endif
