#include "kernels/cpu/amsgrad.h"

#include "kernels/cpu/targets.h"

ACCEL_DECLARE_TARGETS(OptimizerKernel amsgrad_update(const StoredTypes& types) noexcept)

#define ACCEL_KERNEL "kernels/cpu/amsgrad_inl.h"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

OptimizerKernel find_amsgrad_update(Isa isa, const StoredTypes& types) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, amsgrad_update(types)) : nullptr;
}

}  // namespace accel::cpu
