// What the element-wise optimizers on the CPU share: their memory, the options of their single pass, and the storage of
// states. optimizer_inl.h is the pass itself.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dtype.h"
#include "kernels/cpu/isa.h"

namespace accel::cpu {

constexpr int kMaxStates = 3;

// How a state is stored. Arithmetic is always in float32.
//   float32, as_param     plain values, rounded to nearest even when stored
//   stochastic_bfloat16   bfloat16, rounded up or down at random so that the mean is exact
//   blockwise_8bit        one byte an element, then one for the scale of each kQuantBlock elements (after Dettmers
//                         et al., 2022, arXiv:2110.02861, with stochastic rounding); see codecs_inl.h
enum class StateStorage : std::uint8_t { float32, as_param, stochastic_bfloat16, blockwise_8bit };

// Elements that share a scale. Also the alignment of the ranges that kernels are given.
constexpr std::int64_t kQuantBlock = 256;

struct StoredTypes {
  DType param;
  DType grad;
  StateStorage state;
};

// One parameter's memory, borrowed; arrays of equal length that do not overlap, in any alignment that
// the element types have.
struct OptimizerTensors {
  void* param;
  void* grad;  // written only where gradients are zeroed
  void* states[kMaxStates];
  std::uint8_t* scales[kMaxStates];  // one for each kQuantBlock elements begun; only for blockwise_8bit
  void* copy;                        // null, or where the new parameter is also written, as `copy_type`
  DType grad_type;
  DType copy_type;
};

// What a call does in addition to the formula.
struct Pass {
  float grad_scale;          // every gradient is multiplied by it first; negative to maximise
  bool zero_grads;           // leave zeros where the gradients were
  std::uint64_t random_key;  // for stochastic rounding: a key and an element's index give its random bits
};

// Works on the elements [begin, end) of all arrays only; `begin` is a multiple of kQuantBlock, `end` too or the arrays'
// length. `coefficients` points to the formula's. Elements (for blockwise_8bit: blocks) do not influence each other: a
// range may be cut at any such border, and its pieces may run in any order or thread, with bit-identical results.
using OptimizerKernel = void (*)(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end,
                                 const void* coefficients, const Pass& pass);

// The kernels of an optimizer whose step depends on norms over whole tensors; both are called as an
// OptimizerKernel is. The first updates the states and zeroes the gradients if requested. Between the two calls the
// caller adds up a tensor's sums, whose last bits depend on where it was cut, and computes the factor from them.
// The second updates the parameter and writes the copy.
struct SquareSums {
  double param;      // of the old parameter
  double direction;  // of the direction: the parameter changes by it times -lr times the factor
};
struct TwoPassKernels {
  SquareSums (*measure)(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end, const void* coefficients,
                        const Pass& pass);
  void (*apply)(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end, const void* coefficients,
                float factor);
};

template <class Optimizer>
using KernelsOf = std::conditional_t<Optimizer::kIsTwoPass, TwoPassKernels, OptimizerKernel>;

// Each instruction set's kernels of an optimizer, defined in the optimizer's .cpp.
ACCEL_DECLARE_TARGETS(template <class Optimizer> KernelsOf<Optimizer> update_kernels(const StoredTypes& types) noexcept)

// The kernels of an optimizer for these types; `Optimizer` is the declaration in its header in formulas/, whose
// coefficients they take. Null when `isa` is not supported here, or when the optimizer cannot pack its states: two
// passes would decode twice (LAMB).
template <class Optimizer>
KernelsOf<Optimizer> find_update(Isa isa, const StoredTypes& types) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, update_kernels<Optimizer>(types)) : KernelsOf<Optimizer>{};
}

// The finaliser of SplitMix64 (Steele, Lea & Flood, 2014): every bit of the key affects every bit of the result.
inline std::uint64_t mixed(std::uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

// Independent random bits for each update of each tensor. `place` identifies the tensor: a number that the caller
// assigns and that should not change when other tensors join an update or leave it.
inline std::uint64_t random_key(std::uint64_t seed, std::uint64_t step, std::uint64_t place) {
  const std::uint64_t numbers[] = {step, place};
  std::uint64_t key = seed;
  for (const std::uint64_t number : numbers) {
    key = mixed(key + number * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u);
  }
  return key;
}

}  // namespace accel::cpu
