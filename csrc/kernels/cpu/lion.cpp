#include "kernels/cpu/lion.h"

#include "kernels/cpu/targets.h"

ACCEL_DECLARE_TARGETS(OptimizerKernel lion_update(const StoredTypes& types) noexcept)

#define ACCEL_KERNEL "kernels/cpu/lion_inl.h"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

OptimizerKernel find_lion_update(Isa isa, const StoredTypes& types) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, lion_update(types)) : nullptr;
}

}  // namespace accel::cpu
