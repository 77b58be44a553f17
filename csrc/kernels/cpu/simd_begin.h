// Opens the code of one instruction set. A kernel is written once, in an *_inl.h file; one small
// .cpp per instruction set defines ACCEL_TARGET_<ISA>, includes this header, the *_inl.h and then
// simd_end.h. Everything between is compiled for that instruction set, in a namespace of its own,
// so that no function built for a better CPU can be merged with one that must run on every CPU.
// For the same reason standard headers go before this one, never after it.
//
// Provided, for F32, a vector of kLanes floats (the technique of Google Highway, reduced to what
// our kernels need; arithmetic is + - * / on F32):
//   broadcast(x)  multiply_add(a, b, c) = a * b + c  square_root(v)
//   select(mask, a, b)   bit by bit, for U32
//   sign_of(v)   -1, 0 or 1; NaN stays NaN
//   load(pointer) store(pointer, v)   unaligned, float, BFloat16 or Float16 in memory
//   load_signed_bytes(pointer) store_bytes(pointer, v)   bytes as 32-bit integers, U32
//   from_half(U16) to_half(v)         the bits of IEEE binary16
// Stores to 16-bit types round to nearest even; NaN stays NaN, infinity stays infinity.
//
// Compile with -ffp-contract=off: results must not depend on which products a compiler fuses.

#if defined(ACCEL_TARGET_AVX2) || defined(ACCEL_TARGET_AVX512)
#include "kernels/cpu/x86_intrinsics.h"
#elif defined(ACCEL_TARGET_NEON)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "common/dtype.h"

#if defined(ACCEL_TARGET_AVX512)
#define ACCEL_TARGET_NAMESPACE avx512
#define ACCEL_TARGET_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
#elif defined(ACCEL_TARGET_AVX2)
#define ACCEL_TARGET_NAMESPACE avx2
#define ACCEL_TARGET_FEATURES "avx2,fma,f16c"
#elif defined(ACCEL_TARGET_NEON)
#define ACCEL_TARGET_NAMESPACE neon
#elif defined(ACCEL_TARGET_BASELINE)
#define ACCEL_TARGET_NAMESPACE baseline
#else
#error "define one ACCEL_TARGET_<ISA> before including simd_begin.h"
#endif

#if defined(ACCEL_TARGET_FEATURES)
#if defined(__clang__)
#define ACCEL_PRAGMA(text) _Pragma(#text)
#define ACCEL_PUSH_TARGET(features) \
  ACCEL_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
ACCEL_PUSH_TARGET(ACCEL_TARGET_FEATURES)
#else
#pragma GCC push_options
#define ACCEL_PRAGMA(text) _Pragma(#text)
#define ACCEL_PUSH_TARGET(features) ACCEL_PRAGMA(GCC target(features))
ACCEL_PUSH_TARGET(ACCEL_TARGET_FEATURES)
#endif
#endif

#define ACCEL_INLINE inline __attribute__((always_inline))
#define ACCEL_LAMBDA __attribute__((always_inline))
#define ACCEL_FORMULA_NAMESPACE accel::cpu::ACCEL_TARGET_NAMESPACE

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

#if defined(ACCEL_TARGET_AVX512)
constexpr int kLanes = 16;
#elif defined(ACCEL_TARGET_AVX2)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Vectors of GCC and clang: element-wise operators on every architecture.
typedef float F32 __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t U32 __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t U16 __attribute__((vector_size(kLanes * 2)));
typedef std::uint8_t U8 __attribute__((vector_size(kLanes)));
typedef std::int8_t I8 __attribute__((vector_size(kLanes)));
typedef std::int32_t I32 __attribute__((vector_size(kLanes * 4)));
#if defined(ACCEL_TARGET_AVX512)
typedef std::uint16_t U16x32 __attribute__((vector_size(64)));
#endif

ACCEL_INLINE F32 broadcast(float value) { return value - F32{}; }  // minus keeps the sign of -0
ACCEL_INLINE U32 broadcast_bits(std::uint32_t value) { return U32{} + value; }

ACCEL_INLINE F32 multiply_add(F32 a, F32 b, F32 c) {
#if defined(ACCEL_TARGET_AVX512)
  return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(ACCEL_TARGET_AVX2)
  return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(ACCEL_TARGET_NEON)
  return (F32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;  // two roundings
#endif
}

ACCEL_INLINE F32 square_root(F32 v) {
#if defined(ACCEL_TARGET_AVX512)
  return (F32)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#elif defined(ACCEL_TARGET_AVX2)
  return (F32)_mm256_sqrt_ps((__m256)v);
#elif defined(ACCEL_TARGET_NEON)
  return (F32)vsqrtq_f32((float32x4_t)v);
#elif defined(__x86_64__)
  return (F32)_mm_sqrt_ps((__m128)v);
#else
  for (int i = 0; i < kLanes; ++i) {
    v[i] = __builtin_sqrtf(v[i]);
  }
  return v;
#endif
}

// The bits of `a` that the mask has, and the others of `b`.
ACCEL_INLINE U32 select(std::uint32_t mask, U32 a, U32 b) {
#if defined(ACCEL_TARGET_AVX512)
  return (U32)_mm512_ternarylogic_epi32(_mm512_set1_epi32(mask), (__m512i)a, (__m512i)b, 0xca);
#else
  return (a & mask) | (b & ~mask);
#endif
}

ACCEL_INLINE F32 sign_of(F32 v) {
  const F32 one = (F32)(((U32)v & 0x80000000u) | 0x3f800000u);
  return v != v ? v : (v == 0.0f ? F32{} : one);
}

template <class Vector>
ACCEL_INLINE Vector load_bits(const void* source) {
  Vector v;
  __builtin_memcpy(&v, source, sizeof(v));
  return v;
}

// Written out because GCC 12 splits these conversions of wide vectors into halves.
ACCEL_INLINE U32 widen(U16 v) {
#if defined(ACCEL_TARGET_AVX512)
  return (U32)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v);
#elif defined(ACCEL_TARGET_AVX2)
  return (U32)_mm256_cvtepu16_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, U32);
#endif
}
ACCEL_INLINE U16 narrow(U32 v) {
#if defined(ACCEL_TARGET_AVX512)
  return (U16)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)v);
#else
  return __builtin_convertvector(v, U16);
#endif
}

template <class Vector>
ACCEL_INLINE void store_bits(void* target, Vector v) {
  __builtin_memcpy(target, &v, sizeof(v));
}

// Bytes with their sign as 32-bit integers, and the lowest bytes of those.
ACCEL_INLINE U32 load_signed_bytes(const std::uint8_t* source) {
#if defined(ACCEL_TARGET_AVX512)
  return (U32)_mm512_maskz_cvtepi8_epi32(0xffff, load_bits<__m128i>(source));
#elif defined(ACCEL_TARGET_AVX2)
  return (U32)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source)));
#else
  return (U32)__builtin_convertvector(load_bits<I8>(source), I32);
#endif
}
ACCEL_INLINE void store_bytes(std::uint8_t* target, U32 v) {
#if defined(ACCEL_TARGET_AVX512)
  store_bits(target, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v));
#elif defined(ACCEL_TARGET_AVX2)
  const __m256i halves = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));
  const __m128i joined = _mm_unpacklo_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(target), joined);
#else
  store_bits(target, __builtin_convertvector(v, U8));
#endif
}

ACCEL_INLINE F32 load(const float* source) { return load_bits<F32>(source); }
ACCEL_INLINE void store(float* target, F32 v) { store_bits(target, v); }

// bfloat16 is the upper half of a float.
ACCEL_INLINE F32 load(const BFloat16* source) {
  return (F32)(widen(load_bits<U16>(source)) << 16);
}

// Adding half of the dropped part, less one where the kept part is even, rounds to nearest even; a
// mantissa of all ones carries into the exponent, as it should. NaN is made quiet instead: its
// payload may lie in the dropped half only.
ACCEL_INLINE void store(BFloat16* target, F32 v) {
#if defined(ACCEL_TARGET_AVX512)
  // The same with mask registers and a choice of the upper halves: 7 instructions instead of 10,
  // which shows where everything is in bfloat16 and arithmetic limits.
  const __m512i bits = (__m512i)v;
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x00010000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  rounded = _mm512_mask_add_epi32(rounded, odd, rounded, _mm512_set1_epi32(1));
  rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
  const U16x32 upper_halves = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i packed = _mm512_maskz_permutexvar_epi16(0xffffffff, (__m512i)upper_halves, rounded);
  __builtin_memcpy(target, &packed, sizeof(U16));
#else
  const U32 bits = (U32)v;
  const U32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const U32 quiet = bits | 0x00400000u;
  store_bits(target, narrow((v != v ? quiet : rounded) >> 16));
#endif
}

#if defined(ACCEL_TARGET_AVX512)
ACCEL_INLINE F32 from_half(U16 bits) { return (F32)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits); }
ACCEL_INLINE U16 to_half(F32 v) { return (U16)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(ACCEL_TARGET_AVX2)
ACCEL_INLINE F32 from_half(U16 bits) { return (F32)_mm256_cvtph_ps((__m128i)bits); }
ACCEL_INLINE U16 to_half(F32 v) { return (U16)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(ACCEL_TARGET_NEON)
ACCEL_INLINE F32 from_half(U16 bits) { return (F32)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)bits)); }
ACCEL_INLINE U16 to_half(F32 v) { return (U16)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)); }
#else
// IEEE binary16 by integer and float arithmetic, for CPUs without the instruction.
ACCEL_INLINE F32 from_half(U16 narrow_bits) {
  const U32 half = widen(narrow_bits);
  const U32 sign = (half & 0x8000u) << 16;
  const U32 magnitude = half & 0x7fffu;
  // Normal numbers move up by the difference of the exponent biases (127 - 15), infinity and NaN
  // by twice that, to the top of float's exponents.
  const U32 rebased = (magnitude << 13) + 0x38000000u;
  const U32 normal = magnitude >= 0x7c00u ? rebased + 0x38000000u : rebased;
  // A subnormal is its mantissa times 2^-24: the mantissa becomes the low bits of a float whose last
  // place is 2^-24 (0.5), and that 0.5 is taken away again, exactly.
  const F32 subnormal = (F32)(magnitude | 0x3f000000u) - 0.5f;
  return (F32)(sign | (magnitude < 0x0400u ? (U32)subnormal : normal));
}
ACCEL_INLINE U16 to_half(F32 v) {
  const U32 bits = (U32)v;
  const U32 sign = (bits >> 16) & 0x8000u;
  const U32 magnitude = bits & 0x7fffffffu;
  // As for bfloat16, with 13 bits dropped and the exponent's bias changed.
  const U32 normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 lets the float unit round to multiples of 2^-24.
  const U32 subnormal = (U32)((F32)magnitude + 0.5f) - 0x3f000000u;
  const U32 infinity = broadcast_bits(0x7c00u);
  const U32 quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  U32 half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? infinity : half;  // 65520 and above round to it
  half = magnitude > 0x7f800000u ? quiet_nan : half;
  return narrow(half | sign);
}
#endif
ACCEL_INLINE F32 load(const Float16* source) { return from_half(load_bits<U16>(source)); }
ACCEL_INLINE void store(Float16* target, F32 v) { store_bits(target, to_half(v)); }

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
