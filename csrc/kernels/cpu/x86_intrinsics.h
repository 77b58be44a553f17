// The compiler's intrinsics for AVX2, and with ACCEL_TARGET_AVX512 for AVX-512; included once for each.
//
// GCC's immintrin.h declares all instruction sets since MMX, which takes it 0.7 s for each file, longer than many of our
// kernels. Its parts are what they were from GCC 9 to 13 (11 and 12 were tried), and of these those that are needed are
// included, as if by it; who includes it afterwards still gets the rest. Every other compiler gets the whole.

#if defined(__clang__) || defined(__INTEL_COMPILER) || defined(__NVCOMPILER) || !defined(__GNUC__) || __GNUC__ < 9 || \
    __GNUC__ > 13 || defined(_IMMINTRIN_H_INCLUDED)
#include <immintrin.h>
#else
#define _IMMINTRIN_H_INCLUDED
// The order matters.
#include <emmintrin.h>
#include <pmmintrin.h>
#include <tmmintrin.h>
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#if defined(ACCEL_TARGET_AVX512)
#include <avx512fintrin.h>
#include <avx512vlintrin.h>
#include <avx512bwintrin.h>
#include <avx512dqintrin.h>
#include <avx512vlbwintrin.h>
#include <avx512vldqintrin.h>
#endif
#include <fmaintrin.h>
#include <f16cintrin.h>
#undef _IMMINTRIN_H_INCLUDED
#endif
