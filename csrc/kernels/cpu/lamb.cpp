#include "kernels/cpu/lamb.h"

#include <cstddef>

#include "kernels/cpu/targets.h"

ACCEL_DECLARE_TARGETS(TwoPassKernels lamb_update(const StoredTypes& types) noexcept)

#define ACCEL_KERNEL "kernels/cpu/lamb_inl.h"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

TwoPassKernels find_lamb_update(Isa isa, const StoredTypes& types) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, lamb_update(types)) : TwoPassKernels{};
}

}  // namespace accel::cpu
