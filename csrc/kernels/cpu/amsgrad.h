// AMSGrad on CPU; the formula is formulas/amsgrad.h's. `coefficients` of these kernels is an AdamCoefficients.
#pragma once

#include "kernels/cpu/optimizer.h"
#include "kernels/formulas/amsgrad.h"

namespace accel::cpu {

// The update for these types; null when `isa` is not supported here, or when the states are packed: the largest of
// values that are rounded at random is the largest of the roundings, which only grows.
OptimizerKernel find_amsgrad_update(Isa isa, const StoredTypes& types) noexcept;

}  // namespace accel::cpu
