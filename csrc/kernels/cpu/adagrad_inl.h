// Adagrad's kernels. Included between simd_begin.h and simd_end.h.

#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/optimizer_inl.h"
#include "kernels/formulas/adagrad_inl.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {

OptimizerKernel adagrad_update(const StoredTypes& types) noexcept { return optimizer_kernel<AdagradFormula>(types); }

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
