// Vectors of double, for sums. Included between simd_begin.h and simd_end.h.

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

#if defined(ACCEL_TARGET_AVX512)
typedef double F64 __attribute__((vector_size(64)));
ACCEL_INLINE F64 low_half(F32 v) {
  return (F64)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 0));
}
ACCEL_INLINE F64 high_half(F32 v) {
  return (F64)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1));
}
#elif defined(ACCEL_TARGET_AVX2)
typedef double F64 __attribute__((vector_size(32)));
ACCEL_INLINE F64 low_half(F32 v) { return (F64)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
ACCEL_INLINE F64 high_half(F32 v) { return (F64)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
#else
typedef double F64 __attribute__((vector_size(16)));
ACCEL_INLINE F64 low_half(F32 v) { return F64{v[0], v[1]}; }
ACCEL_INLINE F64 high_half(F32 v) { return F64{v[2], v[3]}; }
#endif

ACCEL_INLINE double sum_of_lanes(F64 v) {
  double total = 0.0;
  for (std::size_t i = 0; i < sizeof(F64) / sizeof(double); ++i) {
    total += v[i];
  }
  return total;
}

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
