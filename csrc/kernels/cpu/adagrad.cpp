#include "kernels/cpu/adagrad.h"

#include "kernels/cpu/targets.h"

ACCEL_DECLARE_TARGETS(OptimizerKernel adagrad_update(const StoredTypes& types) noexcept)

#define ACCEL_KERNEL "kernels/cpu/adagrad_inl.h"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

OptimizerKernel find_adagrad_update(Isa isa, const StoredTypes& types) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, adagrad_update(types)) : nullptr;
}

}  // namespace accel::cpu
