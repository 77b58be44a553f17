// The loop over many tensors that the fused optimizers share.
//
// A group takes one chunk of one tensor.
#pragma once

#include "kernels/multi_tensor_arguments.h"
#include "kernels/platform.h"

namespace accel::xpu {

ACCEL_INLINE bool is_skipped(const Controls& controls) {
  return (controls.noop_flag != nullptr && *controls.noop_flag != 0) ||
         (controls.found_inf != nullptr && *controls.found_inf != 0.0f);
}

ACCEL_INLINE float gradient_factor(const Controls& controls) {
  const float factor = controls.grad_scale != nullptr ? 1.0f / *controls.grad_scale : 1.0f;
  return controls.maximize != 0 ? -factor : factor;
}

// A group's chunk: `pointers` to its first elements' tensors, which begin `begin` elements before it.
template <int kPointers>
struct Chunk {
  void* pointers[kPointers];
  std::int64_t begin;
  std::size_t count;

  template <class T>
  ACCEL_INLINE T* array(int role) const {
    return static_cast<T*>(pointers[role]) + begin;
  }
};

// The chunk of number `group`. It is selected, not looked up: an argument that is indexed by a variable is copied to
// each work-item's own memory, and what is read from there is no longer known to be the same for all of them.
template <int kPointers>
ACCEL_INLINE Chunk<kPointers> find_chunk(const TensorTable<kPointers>& table, std::uint32_t group) {
  Chunk<kPointers> chunk;
  std::int64_t numel = table.numel[0];
  std::uint32_t first = 0;
#pragma unroll
  for (int k = 0; k < kPointers; ++k) {
    chunk.pointers[k] = table.pointers[k][0];
  }
#pragma unroll
  for (int i = 1; i < kTensorsPerLaunch; ++i) {
    const bool is_it = i < table.count && table.first_chunk[i] <= group;
#pragma unroll
    for (int k = 0; k < kPointers; ++k) {
      chunk.pointers[k] = is_it ? table.pointers[k][i] : chunk.pointers[k];
    }
    numel = is_it ? table.numel[i] : numel;
    first = is_it ? table.first_chunk[i] : first;
  }
  chunk.begin = static_cast<std::int64_t>(group - first) * table.chunk_elements;
  const std::int64_t rest = numel - chunk.begin;
  chunk.count = static_cast<std::size_t>(rest < table.chunk_elements ? rest : table.chunk_elements);
  return chunk;
}

// One optimizer's kernel. Update has a Formula and
//   static Coefficients coefficients(const Numbers&, const Controls&, const float* step);
template <class Update, class P, class G, class S, int kPointers, class Numbers>
ACCEL_INLINE void update_chunk(const TensorTable<kPointers>& table, const Numbers& numbers, const Controls& controls) {
  using Formula = typename Update::Formula;
  constexpr int kStates = Formula::kStates;
  if (is_skipped(controls)) {
    return;
  }
  const Place here = place();
  const Chunk<kPointers> chunk = find_chunk(table, here.group);
  const float* step = nullptr;
  if constexpr (kPointers > 2 + kStates) {
    step = static_cast<const float*>(chunk.pointers[2 + kStates]);
  }
  const Formula formula(Update::coefficients(numbers, controls, step));
  const float grad_factor = gradient_factor(controls);
  P* const param = chunk.template array<P>(0);
  const G* const grad = chunk.template array<const G>(1);
  S* states[kStates];
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    states[k] = chunk.template array<S>(2 + k);
  }
  for_each_element(here, chunk.count, [&](std::size_t i) {
    float value = to_float(param[i]);
    float state[kStates];
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      state[k] = to_float(states[k][i]);
    }
    formula(value, grad_factor * to_float(grad[i]), state);
    from_float(value, param[i]);
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      from_float(state[k], states[k][i]);
    }
  });
}

// Adds 1 to each counter. A kernel of its own, before the update: in the update some groups would read a counter that
// others have advanced. One work-item does it, in an unrolled loop with constant indices; see find_chunk.
ACCEL_SYCL_FREE_KERNEL void advance_steps(StepTable table, Controls controls) {
  if (is_skipped(controls)) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kStepsPerLaunch; ++i) {
    if (i < table.count) {
      *table.steps[i] += 1.0f;
    }
  }
}

}  // namespace accel::xpu
