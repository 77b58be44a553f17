// Adam for the instruction set "baseline"; see simd_begin.h.
#define ACCEL_TARGET_BASELINE
#include "kernels/cpu/adam.h"
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/adam_inl.h"
#include "kernels/cpu/simd_end.h"
