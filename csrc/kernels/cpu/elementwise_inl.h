// The loop that every element-wise optimizer shares: one pass over a parameter, its gradient and
// its states, each read and written once. An optimizer is a formula; this is everything else.
// Included between simd_begin.h and simd_end.h.

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

// Elements per step of the main loop: a cache line of floats.
constexpr int kBlock = 16;

// How far ahead of the loads to prefetch: 2 KiB of a float stream. The hardware prefetchers stop at
// page ends; with three to four streams per thread this keeps the next page on its way. The distance
// was measured (benchmarks/RESULTS.md); from 1 to 4 KiB it matters little, without it 5 to 10 % more.
constexpr std::int64_t kPrefetchElements = 512;

// A formula is a class with
//   static constexpr int kStates;
//   void operator()(F32& param, F32 grad, F32 (&state)[kStates]) const;  // one vector of each
//
// Updates `count` elements, a multiple of kBlock. Not inlined: whole tensors and rests run the very
// same instructions.
template <class Formula, class P, class G, class S>
__attribute__((noinline)) void update_blocks(const Formula& formula, P* param, const G* grad,
                                             S* const (&state)[Formula::kStates], std::int64_t count) {
  constexpr int kStates = Formula::kStates;
  const Formula in_registers = formula;
  S* states[kStates];  // a copy: the compiler must assume that a store changes the caller's array
  for (int k = 0; k < kStates; ++k) {
    states[k] = state[k];
  }
  for (std::int64_t i = 0; i < count; i += kBlock) {
    __builtin_prefetch(param + i + kPrefetchElements, 1);
    __builtin_prefetch(grad + i + kPrefetchElements, 0);
    for (int k = 0; k < kStates; ++k) {
      __builtin_prefetch(states[k] + i + kPrefetchElements, 1);
    }
    for (std::int64_t j = i; j < i + kBlock; j += kLanes) {
      F32 param_value = load(param + j);
      F32 state_value[kStates];
      for (int k = 0; k < kStates; ++k) {
        state_value[k] = load(states[k] + j);
      }
      in_registers(param_value, load(grad + j), state_value);
      store(param + j, param_value);
      for (int k = 0; k < kStates; ++k) {
        store(states[k] + j, state_value[k]);
      }
    }
  }
}

// Updates the elements [begin, end). A rest shorter than a block goes through padded copies, so no
// result depends on an element's position and no byte outside the range is touched.
template <class Formula, class P, class G, class S>
void update_range(const Formula& formula, P* param, const G* grad, S* const (&state)[Formula::kStates],
                  std::int64_t begin, std::int64_t end) {
  constexpr int kStates = Formula::kStates;
  const std::int64_t rest = (end - begin) % kBlock;
  const std::int64_t middle = end - rest;
  S* state_at[kStates];
  for (int k = 0; k < kStates; ++k) {
    state_at[k] = state[k] + begin;
  }
  update_blocks(formula, param + begin, grad + begin, state_at, middle - begin);
  if (rest == 0) {
    return;
  }
  P param_copy[kBlock] = {};
  G grad_copy[kBlock] = {};
  S state_copy[kStates][kBlock] = {};
  __builtin_memcpy(param_copy, param + middle, rest * sizeof(P));
  __builtin_memcpy(grad_copy, grad + middle, rest * sizeof(G));
  for (int k = 0; k < kStates; ++k) {
    __builtin_memcpy(state_copy[k], state[k] + middle, rest * sizeof(S));
    state_at[k] = state_copy[k];
  }
  update_blocks(formula, param_copy, grad_copy, state_at, kBlock);
  __builtin_memcpy(param + middle, param_copy, rest * sizeof(P));
  for (int k = 0; k < kStates; ++k) {
    __builtin_memcpy(state[k] + middle, state_copy[k], rest * sizeof(S));
  }
}

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
