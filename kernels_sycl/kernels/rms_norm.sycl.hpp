// Root mean square normalisation (Zhang & Sennrich, 2019, arXiv:1910.07467) of rows, with the residual of a
// transformer block added before:
//
//   x   <- x + residual              (rounded to T, and kept in place of the residual)
//   out <- x / sqrt(mean(x^2) + eps) * weight
//
// Arithmetic is in float. A group takes one row after another; what its items have added up is added up over their
// sub-groups and then over the group.
#pragma once

#include "kernels/sub_groups.h"

namespace accel::xpu {

template <class T, class W, bool kHasResidual>
ACCEL_REDUCING_KERNEL void rms_norm(const T* x, T* residual, const W* weight, T* out, std::int64_t rows,
                                    std::int64_t columns, float eps) {
  const Place here = place();
  const std::size_t count = static_cast<std::size_t>(columns);
  for (std::int64_t row = here.group; row < rows; row += here.groups) {
    float sum = 0.0f;
    if constexpr (kHasResidual) {
      const T* const values = x + row * columns;
      T* const kept = residual + row * columns;
      for_each_element(here, count, [&](std::size_t i) {
        from_float(to_float(values[i]) + to_float(kept[i]), kept[i]);
        const float value = to_float(kept[i]);
        sum = multiply_add(value, value, sum);
      });
    } else {
      const T* const values = x + row * columns;
      for_each_element(here, count, [&](std::size_t i) {
        const float value = to_float(values[i]);
        sum = multiply_add(value, value, sum);
      });
    }
    const float total = sum_of_group(sum);
    const float factor = 1.0f / sycl::sqrt(total / static_cast<float>(columns) + eps);
    // Computed again from what all items share: any other pointer would be kept for each item across the sum, which
    // is a barrier.
    const T* const normalised = (kHasResidual ? residual : x) + row * columns;
    T* const to = out + row * columns;
    for_each_element(here, count,
                     [&](std::size_t i) { from_float(to_float(normalised[i]) * factor * to_float(weight[i]), to[i]); });
  }
}

}  // namespace accel::xpu
