// Includes the file that ACCEL_KERNEL names once for each instruction set of this architecture, between simd_begin.h
// and simd_end.h. A kernel is one .cpp that names itself:
//
//   #if !defined(ACCEL_TARGET_NAMESPACE)
//   ... all other headers, with ACCEL_DECLARE_TARGETS(function) and what callers see, by ACCEL_CALL_TARGET ...
//   #define ACCEL_KERNEL "kernels/cpu/this_file.cpp"
//   #include "kernels/cpu/each_isa.h"
//   #else
//   namespace accel::cpu::ACCEL_TARGET_NAMESPACE { namespace { ... } ... function ... }
//   #endif
//
// With ACCEL_PART defined, from 0 to 2, only the instruction set of that number is included, or none: a plan makes an
// object of each, so that they compile side by side (op_builder/recipe.py).
#include "kernels/cpu/isa.h"

#if defined(ACCEL_PART)
#define ACCEL_HAS_PART(number) (ACCEL_PART == (number))
#else
#define ACCEL_HAS_PART(number) 1
#endif

#if ACCEL_HAS_PART(0)
#define ACCEL_TARGET_BASELINE
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#endif

#if defined(__x86_64__)
#if ACCEL_HAS_PART(1)
#define ACCEL_TARGET_AVX2
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#endif

#if ACCEL_HAS_PART(2)
#define ACCEL_TARGET_AVX512
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#endif
#elif defined(__aarch64__) && ACCEL_HAS_PART(1)
#define ACCEL_TARGET_NEON
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#endif

#undef ACCEL_HAS_PART
#undef ACCEL_KERNEL
