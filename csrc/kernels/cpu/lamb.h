// LAMB on CPU; the formula is formulas/lamb.h's. `coefficients` of these kernels is a LambCoefficients, the factor
// between the two passes is lamb_trust_ratio's.
#pragma once

#include "kernels/cpu/optimizer.h"
#include "kernels/formulas/lamb.h"

namespace accel::cpu {

// The update for these types; null when `isa` is not supported here, or the states are packed. They would be
// decoded twice, and their rounding would have to be known before the norms.
TwoPassKernels find_lamb_update(Isa isa, const StoredTypes& types) noexcept;

}  // namespace accel::cpu
