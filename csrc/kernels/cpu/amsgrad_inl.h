// AMSGrad's kernels. Included between simd_begin.h and simd_end.h.

#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/optimizer_inl.h"
#include "kernels/formulas/adam_inl.h"
// The order matters.
#include "kernels/formulas/amsgrad_inl.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {

OptimizerKernel amsgrad_update(const StoredTypes& types) noexcept { return optimizer_kernel<AmsgradFormula>(types); }

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
