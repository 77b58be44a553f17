#include "kernels/cpu/adam.h"

#include "kernels/cpu/targets.h"

ACCEL_DECLARE_TARGETS(OptimizerKernel adam_update(const StoredTypes& types) noexcept)
ACCEL_DECLARE_TARGETS(OptimizerKernel adam_rollback() noexcept)

namespace accel::cpu {

OptimizerKernel find_adam_update(Isa isa, const StoredTypes& types) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, adam_update(types)) : nullptr;
}

OptimizerKernel find_adam_rollback(Isa isa) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, adam_rollback()) : nullptr;
}

}  // namespace accel::cpu
