#include "kernels/comm/reduce.h"

#define ACCEL_KERNEL "kernels/comm/reduce_inl.h"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

static comm::Reducer find_reducer(Isa isa, comm::Element element) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, find_reducer(element)) : nullptr;
}

}  // namespace accel::cpu

namespace accel::comm {

Reducer find_reducer(cpu::Isa isa, Element element) noexcept { return cpu::find_reducer(isa, element); }

}  // namespace accel::comm
