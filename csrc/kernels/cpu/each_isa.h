// Includes the file that ACCEL_KERNEL names once for each instruction set of this architecture, between
// simd_begin.h and simd_end.h. For kernels that compile fast enough to share one .cpp; those that do not
// have a .cpp for each instruction set. Include it once, last, after all standard headers.

#define ACCEL_TARGET_BASELINE
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"

#if defined(__x86_64__)
#define ACCEL_TARGET_AVX2
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"

#define ACCEL_TARGET_AVX512
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#elif defined(__aarch64__)
#define ACCEL_TARGET_NEON
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#endif

#undef ACCEL_KERNEL
