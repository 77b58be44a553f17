// Sums of squares, for norms of gradients.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "kernels/cpu/isa.h"

namespace accel::cpu {

// The sum of the squares of `count` elements, added up in double: no float32 or 16-bit gradient
// overflows it, so it is infinite or NaN just when an element is.
using SumOfSquares = double (*)(const void* values, std::int64_t count);

// Null when `isa` is not supported here. The result's last bits depend on `isa` and on `count`, so a
// sum that is to be the same for any number of threads is made of pieces of fixed lengths.
SumOfSquares find_sum_of_squares(Isa isa, DType type) noexcept;

}  // namespace accel::cpu
