// The kernels of an optimizer whose elements do not influence each other, for every instruction set. Its .cpp is
//
//   #define ACCEL_OPTIMIZER Lion
//   #define ACCEL_FORMULA "kernels/formulas/lion.h"
//   #include "kernels/cpu/elementwise.h"
//
// for a header that has the declaration `Lion` and the formula `LionFormula`.
#if !defined(ACCEL_TARGET_NAMESPACE)

#include "kernels/cpu/optimizer.h"
#include ACCEL_FORMULA

#define ACCEL_JOIN_TEXT(a, b) a##b
#define ACCEL_JOIN(a, b) ACCEL_JOIN_TEXT(a, b)

#define ACCEL_KERNEL "kernels/cpu/elementwise.h"
#include "kernels/cpu/each_isa.h"

#else

#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/optimizer_inl.h"
#include ACCEL_FORMULA

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {

template <>
OptimizerKernel update_kernels<ACCEL_OPTIMIZER>(const StoredTypes& types) noexcept {
  return optimizer_kernel<ACCEL_JOIN(ACCEL_OPTIMIZER, Formula)>(types);
}

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE

#endif
