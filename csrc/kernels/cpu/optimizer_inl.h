// The loop that all element-wise optimizers share: one pass over a parameter, its gradient and its states, each read
// and written once. An optimizer adds only its formula. Included between simd_begin.h and simd_end.h, after
// codecs_inl.h.

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

// How far ahead of the loads to prefetch. The hardware prefetchers stop at page ends; with three to four streams per
// thread this keeps the next page on its way. Measured (benchmarks/RESULTS.md): 2 KiB of a float stream on a CPU with
// AVX-512, 512 bytes on one with AVX2, where 2 KiB cost some 3 %. Baseline and NEON have the latter unmeasured.
#if defined(ACCEL_TARGET_AVX512)
constexpr std::int64_t kPrefetchElements = 512;
#else
constexpr std::int64_t kPrefetchElements = 128;
#endif

// Zeroing gradients and copying parameters follow the update while both are still in the L1 cache.
constexpr std::int64_t kFollowElements = 2048;

// visit(element), with an element of the C++ type that `type` names.
template <class Visit>
auto with_element(DType type, const Visit& visit) {
  switch (type) {
    case DType::bfloat16:
      return visit(BFloat16{});
    case DType::float16:
      return visit(Float16{});
    default:
      return visit(float{});
  }
}

// A formula is a class with
//   using Coefficients = ...;
//   static constexpr int kStates;
//   static constexpr bool kNonNegative[kStates];  // whether a state is never negative
//   explicit Formula(const Coefficients&);
//   void operator()(F32& param, F32 grad, F32 (&state)[kStates]) const;  // one vector of each
// Coefficients and the gradients' scale may be NaN, but only the NaN that arithmetic produces (see store_row).
//
// Updates `count` elements, a multiple of kRow. Not inlined: whole tensors and remainders run the same instructions.
template <class Formula, class P, class G, class S>
__attribute__((noinline)) void update_rows(const Formula& formula, F32 grad_scale, P* param, const G* grad,
                                           S* const (&state)[Formula::kStates], std::int64_t count) {
  constexpr int kStates = Formula::kStates;
  constexpr Order order = kOrder<P, G, S>;
  const Formula in_registers = formula;
  S* states[kStates];  // a copy: the compiler must assume that a store changes the caller's array
  for (int k = 0; k < kStates; ++k) {
    states[k] = state[k];
  }
  for (std::int64_t i = 0; i < count; i += kRow) {
    __builtin_prefetch(param + i + kPrefetchElements, 1);
    __builtin_prefetch(grad + i + kPrefetchElements, 0);
    for (int k = 0; k < kStates; ++k) {
      __builtin_prefetch(states[k] + i + kPrefetchElements, 1);
    }
    F32 params[kRowVectors];
    F32 grads[kRowVectors];
    F32 rows[kStates][kRowVectors];
    load_row<order>(param + i, params);
    load_row<order>(grad + i, grads);
    for_each<kStates>([&](auto k) ACCEL_LAMBDA { load_row<order>(states[k.value] + i, rows[k.value]); });
    for_each<kRowVectors>([&](auto j) ACCEL_LAMBDA {
      F32 values[kStates];
      for_each<kStates>([&](auto k) ACCEL_LAMBDA { values[k.value] = rows[k.value][j.value]; });
      in_registers(params[j.value], grad_scale * grads[j.value], values);
      for_each<kStates>([&](auto k) ACCEL_LAMBDA { rows[k.value][j.value] = values[k.value]; });
    });
    store_row<order>(param + i, params);
    for_each<kStates>([&](auto k) ACCEL_LAMBDA { store_row<order>(states[k.value] + i, rows[k.value]); });
  }
}

// Updates a remainder shorter than a row as a whole row, padded with zeros, so that no result depends on an element's
// position and no byte outside the range is touched.
template <class T>
struct PaddedRest {
  T values[kRow] = {};

  void read(const T* from, std::int64_t count) { __builtin_memcpy(values, from, count * sizeof(T)); }
  void write(T* to, std::int64_t count) const { __builtin_memcpy(to, values, count * sizeof(T)); }
};

// Updates the elements [begin, end).
template <class Formula, class P, class G, class S>
void update_range(const Formula& formula, F32 grad_scale, P* param, const G* grad, S* const (&state)[Formula::kStates],
                  std::int64_t begin, std::int64_t end) {
  constexpr int kStates = Formula::kStates;
  const std::int64_t rest = (end - begin) % kRow;
  const std::int64_t middle = end - rest;
  S* state_at[kStates];
  for (int k = 0; k < kStates; ++k) {
    state_at[k] = state[k] + begin;
  }
  update_rows(formula, grad_scale, param + begin, grad + begin, state_at, middle - begin);
  if (rest == 0) {
    return;
  }
  PaddedRest<P> param_rest;
  PaddedRest<G> grad_rest;
  PaddedRest<S> state_rest[kStates];
  param_rest.read(param + middle, rest);
  grad_rest.read(grad + middle, rest);
  for (int k = 0; k < kStates; ++k) {
    state_rest[k].read(state[k] + middle, rest);
    state_at[k] = state_rest[k].values;
  }
  update_rows(formula, grad_scale, param_rest.values, grad_rest.values, state_at, kRow);
  param_rest.write(param + middle, rest);
  for (int k = 0; k < kStates; ++k) {
    state_rest[k].write(state[k] + middle, rest);
  }
}

template <class From, class To>
__attribute__((noinline)) void convert(const From* from, To* to, std::int64_t count) {
  const std::int64_t rest = count % kLanes;
  for (std::int64_t i = 0; i < count - rest; i += kLanes) {
    store(to + i, load(from + i));
  }
  if (rest != 0) {
    From from_copy[kLanes] = {};
    To to_copy[kLanes];
    __builtin_memcpy(from_copy, from + count - rest, rest * sizeof(From));
    store(to_copy, load(from_copy));
    __builtin_memcpy(to + count - rest, to_copy, rest * sizeof(To));
  }
}

// Writes the new parameters again in the copy's type, if there is a copy.
template <class P>
void write_copy(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end) {
  if (tensors.copy == nullptr) {
    return;
  }
  const P* const param = static_cast<const P*>(tensors.param) + begin;
  with_element(tensors.copy_type, [&](auto element) {
    convert(param, static_cast<decltype(element)*>(tensors.copy) + begin, end - begin);
  });
}

inline void clear_grads(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = size_bytes(tensors.grad_type);
  __builtin_memset(static_cast<char*>(tensors.grad) + begin * size, 0, (end - begin) * size);
}

// Work in addition to the formula.
template <class P>
void follow_up(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end, const Pass& pass) {
  write_copy<P>(tensors, begin, end);
  if (pass.zero_grads) {
    clear_grads(tensors, begin, end);
  }
}

// For states that are stored as plain values.
template <class Formula, class P, class G, class S>
void update_plain(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end, const void* coefficients,
                  const Pass& pass) {
  const Formula formula(*static_cast<const typename Formula::Coefficients*>(coefficients));
  const F32 grad_scale = broadcast(pass.grad_scale);
  P* const param = static_cast<P*>(tensors.param);
  const G* const grad = static_cast<const G*>(tensors.grad);
  S* states[Formula::kStates];
  for (int k = 0; k < Formula::kStates; ++k) {
    states[k] = static_cast<S*>(tensors.states[k]);
  }
  if (tensors.copy == nullptr && !pass.zero_grads) {
    update_range(formula, grad_scale, param, grad, states, begin, end);
    return;
  }
  for (std::int64_t at = begin; at < end; at += kFollowElements) {
    const std::int64_t stop = at + kFollowElements < end ? at + kFollowElements : end;
    update_range(formula, grad_scale, param, grad, states, at, stop);
    follow_up<P>(tensors, at, stop, pass);
  }
}

// Updates one whole block whose states are packed. Only for float parameters and gradients; other types are converted
// first, because compiling this function takes longest.
template <class Formula, class Codec>
__attribute__((noinline)) void update_packed_block(const Formula& formula, F32 grad_scale, float* param,
                                                   const float* grad,
                                                   typename Codec::Element* const (&codes)[Formula::kStates],
                                                   std::uint8_t* const (&scales)[Formula::kStates],
                                                   const RandomBits& random_bits) {
  static_assert(Formula::kStates <= 2);  // an element has 32 random bits, 16 for each state
  constexpr int kStates = Formula::kStates;
  constexpr int kStep = kGroup * kLanes;
  using Element = typename Codec::Element;
  const Formula in_registers = formula;
  RandomBits random = random_bits;
  Element* code[kStates];  // a copy: the compiler must assume that a store changes the caller's array
  F32 scale[kStates] = {};
  U32 largest[kStates] = {};
  alignas(64) float values[kStates][Codec::kScaled ? kQuantBlock : 1];
  for_each<kStates>([&](auto k) ACCEL_LAMBDA {
    code[k.value] = codes[k.value];
    if constexpr (Codec::kScaled) {
      scale[k.value] = Codec::scale(*scales[k.value]);
    }
  });
  for (int i = 0; i < kQuantBlock; i += kStep) {
    for_each<kStep / kRow>([&](auto row) ACCEL_LAMBDA {
      __builtin_prefetch(param + i + row.value * kRow + kPrefetchElements, 1);
      __builtin_prefetch(grad + i + row.value * kRow + kPrefetchElements, 0);
    });
    typename Codec::Codes loaded[kStates];
    for_each<kStates>([&](auto k) ACCEL_LAMBDA {
      constexpr int kOfLine = 64 / sizeof(Element);
      for_each<(kStep + kOfLine - 1) / kOfLine>([&](auto line) ACCEL_LAMBDA {
        __builtin_prefetch(code[k.value] + i + line.value * kOfLine + kPrefetchElements, 1);
      });
      loaded[k.value] = Codec::load_codes(code[k.value] + i);
    });
    F32 states[kStates][kGroup];
    for_each<kGroup / 2>([&](auto pair) ACCEL_LAMBDA {
      for_each<kStates>([&](auto k) ACCEL_LAMBDA {
        Codec::template decode<Formula::kNonNegative[k.value], pair.value>(loaded[k.value], scale[k.value],
                                                                           states[k.value] + 2 * pair.value);
      });
      for_each<2>([&](auto of_pair) ACCEL_LAMBDA {
        constexpr int j = 2 * pair.value + of_pair.value;
        const int at = i + j * kLanes;
        F32 param_value = load(param + at);
        F32 state[kStates];
        for_each<kStates>([&](auto k) ACCEL_LAMBDA { state[k.value] = states[k.value][j]; });
        in_registers(param_value, grad_scale * load(grad + at), state);
        store(param + at, param_value);
        for_each<kStates>([&](auto k) ACCEL_LAMBDA {
          states[k.value][j] = state[k.value];
          if constexpr (Codec::kScaled) {
            Codec::template see<Formula::kNonNegative[k.value]>(largest[k.value], state[k.value]);
            store(&values[k.value][at], state[k.value]);
          }
        });
      });
    });
    if constexpr (!Codec::kScaled) {
      U32 bits[kGroup];
      random.next(bits);
      for_each<kStates>([&](auto k) ACCEL_LAMBDA {
        Codec::template encode<Formula::kNonNegative[k.value], k.value>(code[k.value] + i, states[k.value], F32{},
                                                                        bits);
      });
    }
  }
  if constexpr (Codec::kScaled) {
    F32 factor[kStates];
    for_each<kStates>([&](auto k) ACCEL_LAMBDA {
      factor[k.value] = Codec::template factor<Formula::kNonNegative[k.value]>(largest[k.value], scales[k.value]);
    });
    for (int i = 0; i < kQuantBlock; i += kStep) {
      U32 bits[kGroup];
      random.next(bits);
      for_each<kStates>([&](auto k) ACCEL_LAMBDA {
        F32 group[kGroup];
        for_each<kGroup>([&](auto j) ACCEL_LAMBDA { group[j.value] = load(&values[k.value][i + j.value * kLanes]); });
        Codec::template encode<Formula::kNonNegative[k.value], k.value>(code[k.value] + i, group, factor[k.value],
                                                                        bits);
      });
    }
  }
}

// Updates a block of other types, or a shorter one, as a whole block of floats, and converts back.
template <class Formula, class Codec, class P>
void update_padded_block(const Formula& formula, F32 grad_scale, P* param, const OptimizerTensors& tensors,
                         std::int64_t begin, std::int64_t count,
                         typename Codec::Element* const (&codes)[Formula::kStates],
                         std::uint8_t* const (&scales)[Formula::kStates], const RandomBits& random) {
  using Element = typename Codec::Element;
  constexpr int kStates = Formula::kStates;
  alignas(64) float params[kQuantBlock] = {};
  alignas(64) float grads[kQuantBlock] = {};
  convert(param, params, count);
  with_element(tensors.grad_type, [&](auto element) {
    convert(static_cast<const decltype(element)*>(tensors.grad) + begin, grads, count);
  });
  Element code_copies[kStates][kQuantBlock] = {};
  Element* padded[kStates];
  for (int k = 0; k < kStates; ++k) {
    padded[k] = code_copies[k];
    __builtin_memcpy(padded[k], codes[k], count * sizeof(Element));
  }
  update_packed_block<Formula, Codec>(formula, grad_scale, params, grads, padded, scales, random);
  convert(params, param, count);
  for (int k = 0; k < kStates; ++k) {
    __builtin_memcpy(codes[k], padded[k], count * sizeof(Element));
  }
}

// For states that a codec packs: block by block, in the L1 cache.
template <class Formula, class P, class Codec>
void update_packed(const OptimizerTensors& tensors, std::int64_t begin, std::int64_t end, const void* coefficients,
                   const Pass& pass) {
  constexpr int kStates = Formula::kStates;
  const Formula formula(*static_cast<const typename Formula::Coefficients*>(coefficients));
  const F32 grad_scale = broadcast(pass.grad_scale);
  for (std::int64_t at = begin; at < end; at += kQuantBlock) {
    const std::int64_t stop = at + kQuantBlock < end ? at + kQuantBlock : end;
    const RandomBits random(pass.random_key, at);
    P* const param = static_cast<P*>(tensors.param) + at;
    typename Codec::Element* codes[kStates];
    std::uint8_t* scales[kStates];
    for (int k = 0; k < kStates; ++k) {
      codes[k] = static_cast<typename Codec::Element*>(tensors.states[k]) + at;
      scales[k] = Codec::kScaled ? tensors.scales[k] + at / kQuantBlock : nullptr;
    }
    bool is_done = false;
    if constexpr (sizeof(P) == sizeof(float)) {
      if (tensors.grad_type == DType::float32 && stop - at == kQuantBlock) {
        update_packed_block<Formula, Codec>(formula, grad_scale, param, static_cast<const float*>(tensors.grad) + at,
                                            codes, scales, random);
        is_done = true;
      }
    }
    if (!is_done) {
      update_padded_block<Formula, Codec>(formula, grad_scale, param, tensors, at, stop - at, codes, scales, random);
    }
    follow_up<P>(tensors, at, stop, pass);
  }
}

// The formula's kernel for these types; null where its states cannot be packed as they are.
template <class Formula>
OptimizerKernel optimizer_kernel(const StoredTypes& types) {
  return with_element(types.param, [&](auto param) {
    return with_element(types.grad, [&](auto grad) -> OptimizerKernel {
      using P = decltype(param);
      using G = decltype(grad);
      switch (types.state) {
        case StateStorage::float32:
          return update_plain<Formula, P, G, float>;
        case StateStorage::as_param:
          return update_plain<Formula, P, G, P>;
        case StateStorage::stochastic_bfloat16:
          return update_packed<Formula, P, StochasticBFloat16>;
        case StateStorage::blockwise_8bit:
          return update_packed<Formula, P, Blockwise8Bit>;
      }
      return nullptr;
    });
  });
}

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
