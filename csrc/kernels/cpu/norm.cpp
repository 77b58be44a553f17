// All instruction sets in one file: there is little to compile.
#include "kernels/cpu/norm.h"

#include <cstddef>

#include "kernels/cpu/targets.h"

#define ACCEL_TARGET_BASELINE
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/norm_inl.h"
#include "kernels/cpu/simd_end.h"

#if defined(__x86_64__)
#define ACCEL_TARGET_AVX2
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/norm_inl.h"
#include "kernels/cpu/simd_end.h"

#define ACCEL_TARGET_AVX512
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/norm_inl.h"
#include "kernels/cpu/simd_end.h"
#elif defined(__aarch64__)
#define ACCEL_TARGET_NEON
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/norm_inl.h"
#include "kernels/cpu/simd_end.h"
#endif

namespace accel::cpu {

SumOfSquares find_sum_of_squares(Isa isa, DType type) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, find_sum_of_squares(type)) : nullptr;
}

}  // namespace accel::cpu
