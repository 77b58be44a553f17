// Lion on CPU; the formula is formulas/lion.h's. `coefficients` of these kernels is a LionCoefficients.
#pragma once

#include "kernels/cpu/optimizer.h"
#include "kernels/formulas/lion.h"

namespace accel::cpu {

// The update for these types; null when `isa` is not supported here.
OptimizerKernel find_lion_update(Isa isa, const StoredTypes& types) noexcept;

}  // namespace accel::cpu
