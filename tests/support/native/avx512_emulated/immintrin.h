// In place of the compiler's header, for CPUs that have no AVX-512: what our kernels take of it, written out in
// vectors that the compiler splits into what AVX2 has. For tests only; -I this directory before csrc.
#pragma once

#include_next <immintrin.h>

#include <cmath>
#include <cstdint>

// The target that simd_begin.h asks for would let the compiler use the real instructions.
#define ACCEL_AVX512_FEATURES "avx2,fma,f16c"

namespace emulated {

typedef float F32x16 __attribute__((vector_size(64)));
typedef float F32x8 __attribute__((vector_size(32)));
typedef double F64x8 __attribute__((vector_size(64)));
typedef std::uint32_t U32x16 __attribute__((vector_size(64)));
typedef std::uint16_t U16x32 __attribute__((vector_size(64)));
typedef std::uint16_t U16x16 __attribute__((vector_size(32)));
typedef std::uint8_t U8x64 __attribute__((vector_size(64)));

inline U32x16 set1(std::uint32_t value) { return U32x16{} + value; }

inline U32x16 masked(unsigned mask, U32x16 otherwise, U32x16 value) {
  for (int i = 0; i < 16; ++i) {
    otherwise[i] = mask >> i & 1 ? value[i] : otherwise[i];
  }
  return otherwise;
}

template <class Test>
inline unsigned mask_of(const Test& test) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) {
    mask |= static_cast<unsigned>(test(i)) << i;
  }
  return mask;
}
inline unsigned test_mask(U32x16 a, U32x16 b) {
  return mask_of([&](int i) { return (a[i] & b[i]) != 0; });
}
inline unsigned unordered_mask(F32x16 a, F32x16 b, int predicate) {
  if (predicate != _CMP_UNORD_Q) {
    __builtin_abort();
  }
  return mask_of([&](int i) { return std::isnan(a[i]) || std::isnan(b[i]); });
}

inline F32x16 multiply_add(F32x16 a, F32x16 b, F32x16 c) {
  for (int i = 0; i < 16; ++i) {
    c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  }
  return c;
}
inline F32x16 square_root(F32x16 v) {
  for (int i = 0; i < 16; ++i) {
    v[i] = __builtin_sqrtf(v[i]);
  }
  return v;
}

template <class Vector>
inline Vector permuted(Vector places, Vector v) {
  constexpr unsigned kCount = sizeof(v) / sizeof(v[0]);
  Vector result = v;
  for (unsigned i = 0; i < kCount; ++i) {
    result[i] = v[places[i] % kCount];
  }
  return result;
}

// The halves of each lane of 128 bits of two vectors, element by element in turns.
template <class Vector>
inline Vector interleaved(Vector a, Vector b, bool high) {
  constexpr unsigned kOfLane = 16 / sizeof(a[0]);
  Vector result = a;
  for (unsigned i = 0; i < sizeof(a) / sizeof(a[0]); ++i) {
    const unsigned from = i / kOfLane * kOfLane + i % kOfLane / 2 + (high ? kOfLane / 2 : 0);
    result[i] = i % 2 == 0 ? a[from] : b[from];
  }
  return result;
}

// Signed elements of two vectors in half the bits, lane by lane.
template <class To, class Signed, class From>
inline To packed(From a, From b, int least, int most) {
  constexpr unsigned kOfLane = 16 / sizeof(a[0]);
  To result = {};
  for (unsigned i = 0; i < sizeof(To) / sizeof(result[0]); ++i) {
    const unsigned from = i / (2 * kOfLane) * kOfLane + i % kOfLane;
    const int value = static_cast<Signed>(i / kOfLane % 2 == 0 ? a[from] : b[from]);
    result[i] = value < least ? least : value > most ? most : value;
  }
  return result;
}

inline F32x16 joined(__m256 low, __m256 high) {
  F32x16 result;
  __builtin_memcpy(&result, &low, sizeof(low));
  __builtin_memcpy(reinterpret_cast<char*>(&result) + sizeof(low), &high, sizeof(high));
  return result;
}
inline __m256 half_of(F32x16 v, int which) {
  __m256 half;
  __builtin_memcpy(&half, reinterpret_cast<const char*>(&v) + which * sizeof(half), sizeof(half));
  return half;
}
inline F32x16 from_half(__m256i bits) {
  return joined(_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)));
}
inline __m256i to_half(F32x16 v) {
  const __m128i low = _mm256_cvtps_ph(half_of(v, 0), _MM_FROUND_TO_NEAREST_INT);
  const __m128i high = _mm256_cvtps_ph(half_of(v, 1), _MM_FROUND_TO_NEAREST_INT);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

}  // namespace emulated

// Every mask of a maskz_ operation that our kernels pass is full.
// clang-format off
#define _mm512_set1_epi32(value) ((__m512i)emulated::set1(value))
#define _mm512_add_epi32(a, b) ((__m512i)((emulated::U32x16)(a) + (emulated::U32x16)(b)))
#define _mm512_mask_add_epi32(from, mask, a, b) ((__m512i)emulated::masked(mask, (emulated::U32x16)(from), (emulated::U32x16)(a) + (emulated::U32x16)(b)))
#define _mm512_mask_or_epi32(from, mask, a, b) ((__m512i)emulated::masked(mask, (emulated::U32x16)(from), (emulated::U32x16)(a) | (emulated::U32x16)(b)))
#define _mm512_test_epi32_mask(a, b) emulated::test_mask((emulated::U32x16)(a), (emulated::U32x16)(b))
#define _mm512_cmp_ps_mask(a, b, predicate) emulated::unordered_mask((emulated::F32x16)(a), (emulated::F32x16)(b), predicate)
#define _mm512_fmadd_ps(a, b, c) ((__m512)emulated::multiply_add((emulated::F32x16)(a), (emulated::F32x16)(b), (emulated::F32x16)(c)))
#define _mm512_maskz_sqrt_ps(mask, v) ((__m512)emulated::square_root((emulated::F32x16)(v)))
#define _mm512_maskz_permutexvar_epi32(mask, places, v) ((__m512i)emulated::permuted((emulated::U32x16)(places), (emulated::U32x16)(v)))
#define _mm512_maskz_permutexvar_epi16(mask, places, v) ((__m512i)emulated::permuted((emulated::U16x32)(places), (emulated::U16x32)(v)))
#define _mm512_maskz_unpacklo_epi8(mask, a, b) ((__m512i)emulated::interleaved((emulated::U8x64)(a), (emulated::U8x64)(b), false))
#define _mm512_maskz_unpackhi_epi8(mask, a, b) ((__m512i)emulated::interleaved((emulated::U8x64)(a), (emulated::U8x64)(b), true))
#define _mm512_maskz_unpacklo_epi16(mask, a, b) ((__m512i)emulated::interleaved((emulated::U16x32)(a), (emulated::U16x32)(b), false))
#define _mm512_maskz_unpackhi_epi16(mask, a, b) ((__m512i)emulated::interleaved((emulated::U16x32)(a), (emulated::U16x32)(b), true))
#define _mm512_maskz_packs_epi32(mask, a, b) ((__m512i)emulated::packed<emulated::U16x32, std::int32_t>((emulated::U32x16)(a), (emulated::U32x16)(b), -32768, 32767))
#define _mm512_maskz_packs_epi16(mask, a, b) ((__m512i)emulated::packed<emulated::U8x64, std::int16_t>((emulated::U16x32)(a), (emulated::U16x32)(b), -128, 127))
#define _mm512_maskz_packus_epi16(mask, a, b) ((__m512i)emulated::packed<emulated::U8x64, std::int16_t>((emulated::U16x32)(a), (emulated::U16x32)(b), 0, 255))
#define _mm512_maskz_cvtepu16_epi32(mask, v) ((__m512i)__builtin_convertvector((emulated::U16x16)(v), emulated::U32x16))
#define _mm512_maskz_cvtepi32_epi16(mask, v) ((__m256i)__builtin_convertvector((emulated::U32x16)(v), emulated::U16x16))
#define _mm512_maskz_cvtph_ps(mask, v) ((__m512)emulated::from_half(v))
#define _mm512_maskz_cvtps_ph(mask, v, rounding) emulated::to_half((emulated::F32x16)(v))
#define _mm512_maskz_cvtps_pd(mask, v) ((__m512d)__builtin_convertvector((emulated::F32x8)(v), emulated::F64x8))
#define _mm512_maskz_extractf32x8_ps(mask, v, which) emulated::half_of((emulated::F32x16)(v), which)
// clang-format on
