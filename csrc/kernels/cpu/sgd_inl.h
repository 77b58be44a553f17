// The kernels of SGD with momentum. Included between simd_begin.h and simd_end.h.

#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/optimizer_inl.h"
#include "kernels/formulas/sgd_inl.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {

OptimizerKernel sgd_update(const StoredTypes& types) noexcept { return optimizer_kernel<SgdFormula>(types); }

}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
