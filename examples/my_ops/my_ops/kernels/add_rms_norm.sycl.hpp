// The SYCL kernel: a work-group takes one row after another. A text of its own: a SYCL compiler, or the SYCL runtime,
// reads it.
#pragma once

#include <sycl/builtins.hpp>
#include <sycl/functional.hpp>
#include <sycl/group_algorithm.hpp>

#include "add_rms_norm.h"
#include "host/kernel.h"  // of accel-ops

namespace my_ops_kernels {

// A parameter's class template must be instantiated before: the kernel compiler of 2026.2 crashes otherwise.
template struct AddRmsNorm<float>;
template struct AddRmsNorm<BFloat16>;

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) { return sycl::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline void store(float value, float& to) { to = value; }
// To nearest even; NaN stays NaN.
inline void store(float value, BFloat16& to) {
  const auto bits = sycl::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<std::uint16_t>(value == value ? rounded : 0x7fc0u);
}

template <class T>
ACCEL_SYCL_FREE_KERNEL void add_rms_norm_kernel(AddRmsNorm<T> norm, std::int64_t rows) {
  const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<1>();
  const auto threads = static_cast<std::int64_t>(item.get_local_range(0));
  const auto first = static_cast<std::int64_t>(item.get_local_id(0));
  const auto groups = static_cast<std::int64_t>(item.get_group_range(0));
  for (auto row = static_cast<std::int64_t>(item.get_group(0)); row < rows; row += groups) {
    const std::int64_t begin = row * norm.columns;
    T* const residual = norm.residual + begin;
    float squares = 0.0f;
    for (std::int64_t i = first; i < norm.columns; i += threads) {
      store(to_float(norm.x[begin + i]) + to_float(residual[i]), residual[i]);
      const float value = to_float(residual[i]);
      squares += value * value;
    }
    const float sum =
        sycl::reduce_over_group(sycl::ext::oneapi::this_work_item::get_work_group<1>(), squares, sycl::plus<float>());
    const float scale = 1.0f / sycl::sqrt(sum / static_cast<float>(norm.columns) + norm.eps);
    for (std::int64_t i = first; i < norm.columns; i += threads) {
      store(to_float(residual[i]) * scale * to_float(norm.weight[i]), norm.out[begin + i]);
    }
  }
}

}  // namespace my_ops_kernels
