// Lion's kernels. Included between simd_begin.h and simd_end.h.

#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/optimizer_inl.h"
#include "kernels/formulas/lion_inl.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {

OptimizerKernel lion_update(const StoredTypes& types) noexcept { return optimizer_kernel<LionFormula>(types); }

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
