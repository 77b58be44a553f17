#include "kernels/cpu/norm.h"

#include <cstddef>

#include "kernels/cpu/targets.h"

#define ACCEL_KERNEL "kernels/cpu/norm_inl.h"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

SumOfSquares find_sum_of_squares(Isa isa, DType type) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, find_sum_of_squares(type)) : nullptr;
}

}  // namespace accel::cpu
