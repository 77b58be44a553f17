// Reductions. Included between simd_begin.h and simd_end.h.

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

using comm::Reduction;
using comm::Stretch;

typedef std::int32_t I32 __attribute__((vector_size(kLanes * 4)));
ACCEL_INLINE I32 load(const std::int32_t* source) { return load_bits<I32>(source); }
ACCEL_INLINE void store(std::int32_t* target, I32 v) { store_bits(target, v); }

constexpr int kVectors = 4;  // reduced together, so that the operation is chosen once
constexpr std::int64_t kBlock = kVectors * kLanes;
// For a range in main memory; the CPU's own prefetching stops at each page.
constexpr std::int64_t kFetchedAheadBytes = 1 << 10, kLongBytes = 64 << 10;

ACCEL_INLINE F32 sum_of(F32 a, F32 b) { return a + b; }
ACCEL_INLINE I32 sum_of(I32 a, I32 b) { return (I32)((U32)a + (U32)b); }
// Written so that NaN wins in either position.
ACCEL_INLINE F32 larger_of(F32 a, F32 b) { return ((a > b) | (a != a)) ? a : b; }
ACCEL_INLINE I32 larger_of(I32 a, I32 b) { return a > b ? a : b; }
ACCEL_INLINE F32 smaller_of(F32 a, F32 b) { return ((a < b) | (a != a)) ? a : b; }
ACCEL_INLINE I32 smaller_of(I32 a, I32 b) { return a < b ? a : b; }
ACCEL_INLINE F32 divided(F32 v, float by) { return v / by; }
ACCEL_INLINE I32 divided(I32 v, float) { return v; }

template <class T>
using VectorOf = decltype(load(static_cast<const T*>(nullptr)));

// Reduces one block of another source into `sums`.
template <class T>
ACCEL_INLINE void take_in(VectorOf<T>* sums, const T* source, Reduction reduction) {
  if (reduction == Reduction::max) {
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = larger_of(sums[v], load(source + v * kLanes));
    }
  } else if (reduction == Reduction::min) {
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = smaller_of(sums[v], load(source + v * kLanes));
    }
  } else {
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = sum_of(sums[v], load(source + v * kLanes));
    }
  }
}

// The last elements, too few for a block.
template <class T>
void reduce_rest(const Stretch& stretch, std::int64_t begin) {
  const std::int64_t bytes = (stretch.count - begin) * static_cast<std::int64_t>(sizeof(T));
  T padded[kBlock] = {};
  VectorOf<T> sums[kVectors];
  for (int s = 0; s < stretch.source_count; ++s) {
    __builtin_memcpy(padded, static_cast<const T*>(stretch.sources[s]) + begin, bytes);
    if (s == 0) {
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = load(padded + v * kLanes);
      }
    } else {
      take_in(sums, padded, stretch.reduction);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    store(padded + v * kLanes,
          stretch.reduction == Reduction::avg ? divided(sums[v], static_cast<float>(stretch.source_count)) : sums[v]);
  }
  for (int o = 0; o < stretch.out_count; ++o) {
    __builtin_memcpy(static_cast<T*>(stretch.outs[o]) + begin, padded, bytes);
  }
}

template <class T>
void reduce(const Stretch& stretch) {
  const T* const* const sources = reinterpret_cast<const T* const*>(stretch.sources);
  T* const* const outs = reinterpret_cast<T* const*>(stretch.outs);
  const int source_count = stretch.source_count;
  const int out_count = stretch.out_count;
  const Reduction reduction = stretch.reduction;
  const std::int64_t whole = stretch.count - stretch.count % kBlock;
  const bool is_long = whole * static_cast<std::int64_t>(sizeof(T)) >= kLongBytes;
  for (std::int64_t at = 0; at < whole; at += kBlock) {
    for (int s = 0; is_long && s < source_count; ++s) {
      const char* const ahead = reinterpret_cast<const char*>(sources[s] + at) + kFetchedAheadBytes;
      for (std::int64_t line = 0; line < kBlock * static_cast<std::int64_t>(sizeof(T)); line += 64) {
        __builtin_prefetch(ahead + line, 0);
      }
    }
    VectorOf<T> sums[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = load(sources[0] + at + v * kLanes);
    }
    for (int s = 1; s < source_count; ++s) {
      take_in(sums, sources[s] + at, reduction);
    }
    if (reduction == Reduction::avg) {
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = divided(sums[v], static_cast<float>(source_count));
      }
    }
    for (int o = 0; o < out_count; ++o) {
      for (int v = 0; v < kVectors; ++v) {
        store(outs[o] + at + v * kLanes, sums[v]);
      }
    }
  }
  if (whole < stretch.count) {
    reduce_rest<T>(stretch, whole);
  }
}

}  // namespace

comm::Reducer find_reducer(comm::Element element) noexcept {
  switch (element) {
    case comm::Element::float32:
      return reduce<float>;
    case comm::Element::bfloat16:
      return reduce<BFloat16>;
    case comm::Element::float16:
      return reduce<Float16>;
    case comm::Element::int32:
      return reduce<std::int32_t>;
  }
  return nullptr;
}

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
