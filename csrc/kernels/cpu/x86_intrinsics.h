// The compiler's intrinsics for AVX2, and with ACCEL_TARGET_AVX512 for AVX-512; included once for each.
//
// GCC's immintrin.h declares all instruction sets since MMX, which takes it 0.7 s for each file, longer than many of our
// kernels. Its parts are what they were from GCC 9 to 13 (11 and 12 were tried), and of these those that are needed are
// included, as if by it. Every other compiler gets the whole.

#if defined(__clang__) || !defined(__GNUC__) || __GNUC__ < 9 || __GNUC__ > 13
#include <immintrin.h>
#else
#if !defined(_IMMINTRIN_H_INCLUDED)
#define _IMMINTRIN_H_INCLUDED
#define ACCEL_CHOSEN_INTRINSICS
// The order matters.
#include <emmintrin.h>
#include <pmmintrin.h>
#include <tmmintrin.h>
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>
#include <f16cintrin.h>
#endif
#if defined(ACCEL_TARGET_AVX512) && defined(ACCEL_CHOSEN_INTRINSICS)
#include <avx512fintrin.h>
#include <avx512vlintrin.h>
#include <avx512bwintrin.h>
#include <avx512dqintrin.h>
#include <avx512vlbwintrin.h>
#include <avx512vldqintrin.h>
#endif
#endif
