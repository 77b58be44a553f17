// Adam for the instruction set "avx2"; see simd_begin.h.
#if defined(__x86_64__)
#define ACCEL_TARGET_AVX2
#include "kernels/cpu/adam.h"
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/adam_inl.h"
#include "kernels/cpu/simd_end.h"
#endif
