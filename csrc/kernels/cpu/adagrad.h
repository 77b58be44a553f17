// Adagrad on CPU; the formula is formulas/adagrad.h's. `coefficients` of these kernels is an AdagradCoefficients.
#pragma once

#include "kernels/cpu/optimizer.h"
#include "kernels/formulas/adagrad.h"

namespace accel::cpu {

// The update for these types; null when `isa` is not supported here.
OptimizerKernel find_adagrad_update(Isa isa, const StoredTypes& types) noexcept;

}  // namespace accel::cpu
