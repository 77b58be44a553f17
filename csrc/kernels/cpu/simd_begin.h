// Opens the code of one instruction set; each_isa.h defines ACCEL_TARGET_<ISA>, includes this header,
// the kernel and then simd_end.h. Everything between is compiled for that instruction set, in a
// namespace of its own, so that no function built for a better CPU can be merged with one that must
// run on every CPU. For the same reason standard headers go before this one, never after it.
//
// Provided, for F32, a vector of kLanes floats (the technique of Google Highway, reduced to what
// our kernels need; arithmetic is + - * / on F32):
//   broadcast(x)  multiply_add(a, b, c) = a * b + c  square_root(v)
//   sign_of(v)   -1, 0 or 1; NaN stays NaN
//   load(pointer) store(pointer, v)   unaligned, float, BFloat16 or Float16 in memory
//   load_row<order>(pointer, v) store_row<order>(pointer, v)   16 elements, kRowVectors vectors
//   in_lanes widened_low raised_low packed ...   bytes and words to wider integers and back
//   from_half(U16) to_half(v)         the bits of IEEE binary16
// Stores to 16-bit types round to nearest even; NaN stays NaN, infinity stays infinity.
//
// Compile with -ffp-contract=off: results must not depend on which products a compiler fuses.

#if defined(ACCEL_TARGET_AVX2) || defined(ACCEL_TARGET_AVX512)
#include <immintrin.h>
#elif defined(ACCEL_TARGET_NEON)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <type_traits>

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

// A vector of bytes has as many as four vectors of 32 bits, one of words as many as two. They become wider and narrower
// within lanes of 128 bits, as x86 does it: what in_lanes() has arranged becomes vectors in order, and what was packed
// from such vectors is in order again after in_order().
typedef std::uint8_t Bytes __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t Words __attribute__((vector_size(kLanes * 4)));

ACCEL_INLINE Bytes in_lanes(Bytes v) {
#if defined(ACCEL_TARGET_AVX512)
  const U32 places = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return (Bytes)_mm512_maskz_permutexvar_epi32(0xffff, (__m512i)places, (__m512i)v);
#elif defined(ACCEL_TARGET_AVX2)
  const U32 places = {0, 2, 4, 6, 1, 3, 5, 7};
  return (Bytes)_mm256_permutevar8x32_epi32((__m256i)v, (__m256i)places);
#else
  return v;
#endif
}
ACCEL_INLINE Bytes in_order(Bytes v) {
#if defined(ACCEL_TARGET_AVX2)
  const U32 places = {0, 4, 1, 5, 2, 6, 3, 7};
  return (Bytes)_mm256_permutevar8x32_epi32((__m256i)v, (__m256i)places);
#else
  return in_lanes(v);  // with four lanes they are rows and columns of a square
#endif
}

#if defined(ACCEL_TARGET_AVX512)
#define ACCEL_INTEGERS(operation, a, b) _mm512_maskz_##operation(-1, (__m512i)(a), (__m512i)(b))
#elif defined(ACCEL_TARGET_AVX2)
#define ACCEL_INTEGERS(operation, a, b) _mm256_##operation((__m256i)(a), (__m256i)(b))
#elif defined(__x86_64__)
#define ACCEL_INTEGERS(operation, a, b) _mm_##operation((__m128i)(a), (__m128i)(b))
#endif
#if defined(ACCEL_INTEGERS)
// The lower and the higher half of each lane, as numbers of twice the bits,
ACCEL_INLINE Words widened_low(Bytes v) { return (Words)ACCEL_INTEGERS(unpacklo_epi8, v, Bytes{}); }
ACCEL_INLINE Words widened_high(Bytes v) { return (Words)ACCEL_INTEGERS(unpackhi_epi8, v, Bytes{}); }
// and as the upper halves of such numbers.
ACCEL_INLINE Words raised_low(Bytes v) { return (Words)ACCEL_INTEGERS(unpacklo_epi8, Bytes{}, v); }
ACCEL_INLINE Words raised_high(Bytes v) { return (Words)ACCEL_INTEGERS(unpackhi_epi8, Bytes{}, v); }
ACCEL_INLINE U32 raised_low(Words v) { return (U32)ACCEL_INTEGERS(unpacklo_epi16, Words{}, v); }
ACCEL_INLINE U32 raised_high(Words v) { return (U32)ACCEL_INTEGERS(unpackhi_epi16, Words{}, v); }
// Signed numbers in half the bits, with saturation.
ACCEL_INLINE Words packed(U32 a, U32 b) { return (Words)ACCEL_INTEGERS(packs_epi32, a, b); }
ACCEL_INLINE Bytes packed(Words a, Words b) { return (Bytes)ACCEL_INTEGERS(packs_epi16, a, b); }
// The same, unsigned.
ACCEL_INLINE Bytes packed_unsigned(Words a, Words b) { return (Bytes)ACCEL_INTEGERS(packus_epi16, a, b); }
#elif defined(ACCEL_TARGET_NEON)
ACCEL_INLINE Words widened_low(Bytes v) { return (Words)vmovl_u8(vget_low_u8((uint8x16_t)v)); }
ACCEL_INLINE Words widened_high(Bytes v) { return (Words)vmovl_high_u8((uint8x16_t)v); }
ACCEL_INLINE Words raised_low(Bytes v) { return widened_low(v) << 8; }
ACCEL_INLINE Words raised_high(Bytes v) { return widened_high(v) << 8; }
ACCEL_INLINE U32 raised_low(Words v) { return (U32)vshll_n_u16(vget_low_u16((uint16x8_t)v), 16); }
ACCEL_INLINE U32 raised_high(Words v) { return (U32)vshll_high_n_u16((uint16x8_t)v, 16); }
ACCEL_INLINE Words packed(U32 a, U32 b) { return (Words)vqmovn_high_s32(vqmovn_s32((int32x4_t)a), (int32x4_t)b); }
ACCEL_INLINE Bytes packed(Words a, Words b) { return (Bytes)vqmovn_high_s16(vqmovn_s16((int16x8_t)a), (int16x8_t)b); }
ACCEL_INLINE Bytes packed_unsigned(Words a, Words b) {
  return (Bytes)vqmovun_high_s16(vqmovun_s16((int16x8_t)a), (int16x8_t)b);
}
#else
// One lane, element by element.
template <class Wide, class Narrow>
ACCEL_INLINE Wide widened(Narrow v, int first, int shift) {
  Wide wide = {};
  for (unsigned i = 0; i < sizeof(wide) / sizeof(wide[0]); ++i) {
    wide[i] = static_cast<std::uint32_t>(v[first + i]) << shift;
  }
  return wide;
}
template <class Narrow, class Signed, class Wide>
ACCEL_INLINE Narrow clamped(Wide a, Wide b, std::int32_t least, std::int32_t most) {
  constexpr int kCount = sizeof(a) / sizeof(a[0]);
  Narrow narrow = {};
  for (int i = 0; i < 2 * kCount; ++i) {
    const std::int32_t value = static_cast<Signed>(i < kCount ? a[i] : b[i - kCount]);
    narrow[i] = value < least ? least : value > most ? most : value;
  }
  return narrow;
}
ACCEL_INLINE Words widened_low(Bytes v) { return widened<Words>(v, 0, 0); }
ACCEL_INLINE Words widened_high(Bytes v) { return widened<Words>(v, 2 * kLanes, 0); }
ACCEL_INLINE Words raised_low(Bytes v) { return widened<Words>(v, 0, 8); }
ACCEL_INLINE Words raised_high(Bytes v) { return widened<Words>(v, 2 * kLanes, 8); }
ACCEL_INLINE U32 raised_low(Words v) { return widened<U32>(v, 0, 16); }
ACCEL_INLINE U32 raised_high(Words v) { return widened<U32>(v, kLanes, 16); }
ACCEL_INLINE Words packed(U32 a, U32 b) { return clamped<Words, std::int32_t>(a, b, -32768, 32767); }
ACCEL_INLINE Bytes packed(Words a, Words b) { return clamped<Bytes, std::int16_t>(a, b, -128, 127); }
ACCEL_INLINE Bytes packed_unsigned(Words a, Words b) { return clamped<Bytes, std::int16_t>(a, b, 0, 255); }
#endif

ACCEL_INLINE F32 load(const float* source) { return load_bits<F32>(source); }
ACCEL_INLINE void store(float* target, F32 v) { store_bits(target, v); }

// bfloat16 is the upper half of a float.
ACCEL_INLINE F32 load(const BFloat16* source) {
#if defined(ACCEL_TARGET_AVX2)
  // Loading them twice costs nothing, and then one shuffle does it.
  const __m256i twice = _mm256_broadcastsi128_si256(load_bits<__m128i>(source));
  const __m256i places = _mm256_setr_epi32(0x0100ffff, 0x0302ffff, 0x0504ffff, 0x0706ffff,  //
                                           0x0908ffff, 0x0b0affff, 0x0d0cffff, 0x0f0effff);
  return (F32)_mm256_shuffle_epi8(twice, places);
#else
  return (F32)(widen(load_bits<U16>(source)) << 16);
#endif
}

// Its bits, with something in the upper half that keeps it a NaN.
ACCEL_INLINE U32 quiet_nan(F32 nan) { return (U32)nan | 0x00400000u; }

// Adding half of the dropped part, less one where the kept part is even, rounds to nearest even; a
// mantissa of all ones carries into the exponent, as it should. NaN is made quiet instead: its
// payload may lie in the dropped half only. The result is in the upper halves.
ACCEL_INLINE U32 rounded_bfloat16(F32 v) {
  const U32 bits = (U32)v;
  const U32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return v != v ? quiet_nan(v) : rounded;
}
ACCEL_INLINE void store(BFloat16* target, F32 v) {
#if defined(ACCEL_TARGET_AVX512)
  // The same with mask registers and a choice of the upper halves: 7 instructions instead of 10,
  // which matters if everything is bfloat16 and arithmetic is the limit.
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
  store_bits(target, narrow(rounded_bfloat16(v) >> 16));
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

// Calls visit(Index<0>{}), visit(Index<1>{}) and so on, without a loop.
template <int k>
struct Index {
  static constexpr int value = k;
};
template <int kCount, class Visit>
ACCEL_INLINE void for_each(const Visit& visit) {
  if constexpr (kCount > 0) {
    for_each<kCount - 1>(visit);
    visit(Index<kCount - 1>{});
  }
}

ACCEL_INLINE bool is_any_nan(F32 a, F32 b) {
#if defined(ACCEL_TARGET_AVX512)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
#elif defined(ACCEL_TARGET_AVX2)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
#elif defined(ACCEL_TARGET_NEON)
  return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
#elif defined(__x86_64__)
  return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)) != 0;
#else
  bool is_any = false;
  for (int i = 0; i < kLanes; ++i) {
    is_any |= a[i] != a[i] || b[i] != b[i];
  }
  return is_any;
#endif
}

#if defined(ACCEL_TARGET_AVX2)
// Two vectors become 16 words of their upper or lower halves, the first one's at even places.
ACCEL_INLINE Words upper_halves(U32 first, U32 second) {
  return (Words)_mm256_blend_epi16((__m256i)(first >> 16), (__m256i)second, 0xaa);
}
ACCEL_INLINE Words lower_halves(U32 first, U32 second) {
  return (Words)_mm256_blend_epi16((__m256i)first, (__m256i)(second << 16), 0xaa);
}
// The words at even places, then the others.
ACCEL_INLINE Words even_odd(Words v) {
  const __m256i places = _mm256_setr_epi32(0x05040100, 0x0d0c0908, 0x07060302, 0x0f0e0b0a,  //
                                           0x05040100, 0x0d0c0908, 0x07060302, 0x0f0e0b0a);
  return (Words)_mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)v, places), 0xd8);
}
// upper_halves() rounded to nearest even, 16 at a time: upwards where the lower half is more than 0x8000, or 0x8000
// below an odd upper one. Not for NaN, of whose payload a part may be in the lower half.
ACCEL_INLINE Words rounded_halves(F32 first, F32 second) {
  const Words upper = upper_halves((U32)first, (U32)second);
  const Words lower = lower_halves((U32)first, (U32)second) ^ static_cast<std::uint16_t>(0x8000);  // as signed numbers
  const __m256i sum = _mm256_adds_epi16((__m256i)lower, (__m256i)(upper & static_cast<std::uint16_t>(1)));
  return upper - (Words)_mm256_cmpgt_epi16(sum, _mm256_setzero_si256());
}
#endif

// The upper halves of two vectors, one behind the other.
ACCEL_INLINE void store_upper_halves(BFloat16* target, U32 first, U32 second) {
#if defined(ACCEL_TARGET_AVX2)
  store_bits(target, even_odd(upper_halves(first, second)));
#else
  store_bits(target, narrow(first >> 16));
  store_bits(target + kLanes, narrow(second >> 16));
#endif
}

// A row is 16 elements, of floats a cache line.
constexpr int kRow = 16;
constexpr int kRowVectors = kRow / kLanes;

// In which order a row's elements are in its vectors.
enum class Order { memory, even_odd };

// If all arrays are bfloat16, any order will do: with even places first AVX2 needs no shuffles.
#if defined(ACCEL_TARGET_AVX2)
template <class... Types>
constexpr Order kOrder = (std::is_same_v<Types, BFloat16> && ...) ? Order::even_odd : Order::memory;
#else
template <class...>
constexpr Order kOrder = Order::memory;
#endif

template <Order kRowOrder, class T>
ACCEL_INLINE void load_row(const T* source, F32 (&row)[kRowVectors]) {
#if defined(ACCEL_TARGET_AVX2)
  if constexpr (kRowOrder == Order::even_odd) {
    const U32 words = load_bits<U32>(source);
    row[0] = (F32)(words << 16);
    row[1] = (F32)(words & 0xffff0000u);
    return;
  }
#endif
  for_each<kRowVectors>([&](auto k) ACCEL_LAMBDA { row[k.value] = load(source + k.value * kLanes); });
}

template <Order kRowOrder, class T>
ACCEL_INLINE void store_row(T* target, const F32 (&row)[kRowVectors]) {
#if defined(ACCEL_TARGET_AVX2)
  if constexpr (kRowOrder == Order::even_odd) {
    // NaN survives: those loaded from bfloat16 and those of arithmetic have zeros in the lower half.
    store_bits(target, rounded_halves(row[0], row[1]));
    return;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    if (__builtin_expect(!is_any_nan(row[0], row[1]), 1)) {
      store_bits(target, even_odd(rounded_halves(row[0], row[1])));
      return;
    }
  }
#endif
  for_each<kRowVectors>([&](auto k) ACCEL_LAMBDA { store(target + k.value * kLanes, row[k.value]); });
}

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
