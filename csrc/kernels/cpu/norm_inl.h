// Included between simd_begin.h and simd_end.h.

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

#if defined(ACCEL_TARGET_AVX512)
typedef double F64 __attribute__((vector_size(64)));
ACCEL_INLINE F64 low_half(F32 v) { return (F64)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 0)); }
ACCEL_INLINE F64 high_half(F32 v) { return (F64)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1)); }
#elif defined(ACCEL_TARGET_AVX2)
typedef double F64 __attribute__((vector_size(32)));
ACCEL_INLINE F64 low_half(F32 v) { return (F64)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
ACCEL_INLINE F64 high_half(F32 v) { return (F64)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
#else
typedef double F64 __attribute__((vector_size(16)));
ACCEL_INLINE F64 low_half(F32 v) { return F64{v[0], v[1]}; }
ACCEL_INLINE F64 high_half(F32 v) { return F64{v[2], v[3]}; }
#endif

template <class T>
double sum_of_squares(const void* values, std::int64_t count) {
  constexpr int kUnroll = 2;  // four chains of additions hide their latency
  constexpr std::int64_t kStep = kUnroll * kLanes;
  const T* const source = static_cast<const T*>(values);
  F64 sums[2 * kUnroll] = {};
  const auto add = [&](const T* from) __attribute__((always_inline)) {
    for (int u = 0; u < kUnroll; ++u) {
      const F32 v = load(from + u * kLanes);
      const F64 low = low_half(v);
      const F64 high = high_half(v);
      sums[2 * u] += low * low;
      sums[2 * u + 1] += high * high;
    }
  };
  const std::int64_t rest = count % kStep;
  for (std::int64_t i = 0; i < count - rest; i += kStep) {
    __builtin_prefetch(source + i + 512, 0);
    add(source + i);
  }
  if (rest != 0) {
    T padded[kStep] = {};
    __builtin_memcpy(padded, source + count - rest, rest * sizeof(T));
    add(padded);
  }
  const F64 sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0.0;
  for (std::size_t i = 0; i < sizeof(F64) / sizeof(double); ++i) {
    total += sum[i];
  }
  return total;
}

}  // namespace

SumOfSquares find_sum_of_squares(DType type) noexcept {
  switch (type) {
    case DType::float32:
      return sum_of_squares<float>;
    case DType::bfloat16:
      return sum_of_squares<BFloat16>;
    case DType::float16:
      return sum_of_squares<Float16>;
  }
  return nullptr;
}

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
