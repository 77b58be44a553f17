// Adam for the instruction set "neon"; see simd_begin.h.
#if defined(__aarch64__)
#define ACCEL_TARGET_NEON
#include "kernels/cpu/adam.h"
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/adam_inl.h"
#include "kernels/cpu/simd_end.h"
#endif
