#include "kernels/cpu/sgd.h"

#include "kernels/cpu/targets.h"

ACCEL_DECLARE_TARGETS(OptimizerKernel sgd_update(const StoredTypes& types) noexcept)

#define ACCEL_KERNEL "kernels/cpu/sgd_inl.h"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

OptimizerKernel find_sgd_update(Isa isa, const StoredTypes& types) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, sgd_update(types)) : nullptr;
}

}  // namespace accel::cpu
