// SGD with momentum on CPU; the formula is formulas/sgd.h's. `coefficients` of these kernels is an SgdCoefficients.
#pragma once

#include "kernels/cpu/optimizer.h"
#include "kernels/formulas/sgd.h"

namespace accel::cpu {

// The update for these types; null when `isa` is not supported here.
OptimizerKernel find_sgd_update(Isa isa, const StoredTypes& types) noexcept;

}  // namespace accel::cpu
