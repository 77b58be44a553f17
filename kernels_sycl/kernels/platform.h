// The basis of kernel texts: a work-item's position, conversion of memory to floats and back, and what formulas/*.h
// require of a platform.
//
// Nothing here needs a device with half or double: half is converted on its bits, which costs less than its memory
// takes.
#pragma once

#include <sycl/builtins.hpp>

#include <cstdint>

#include "common/dtype.h"
#include "host/kernel.h"

#define ACCEL_INLINE __attribute__((always_inline)) inline
#define ACCEL_FORMULA_NAMESPACE accel::xpu

// As -ffp-contract=off for the other platforms: products are fused where a formula says so and nowhere else.
#pragma clang fp contract(off)

namespace accel::xpu {

using F32 = float;
ACCEL_INLINE float broadcast(float value) { return value; }
ACCEL_INLINE float multiply_add(float a, float b, float c) { return sycl::fma(a, b, c); }
ACCEL_INLINE float square_root(float value) { return sycl::sqrt(value); }
ACCEL_INLINE float sign_of(float value) { return value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : value; }

ACCEL_INLINE std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
ACCEL_INLINE float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

ACCEL_INLINE float to_float(float value) { return value; }
ACCEL_INLINE float to_float(BFloat16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }

// To nearest even; NaN stays NaN, what is too large becomes infinity.
ACCEL_INLINE void from_float(float value, float& to) { to = value; }
ACCEL_INLINE void from_float(float value, BFloat16& to) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

ACCEL_INLINE float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude < 0x400u) {  // subnormal: not by way of a subnormal float, which a device may take for 0
    return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
  }
  // Infinity and NaN, which keeps its payload, have the largest exponent of either type.
  return float_of(sign | ((magnitude << 13) + (magnitude < 0x7c00u ? 0x38000000u : 0x70000000u)));
}
ACCEL_INLINE void from_float(float value, Float16& to) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5, whose last bit is worth half's smallest number, 2^-24, makes the addition round.
    result = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    result = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  to.bits = static_cast<std::uint16_t>(sign | result);
}

// Where this work-item is.
struct Place {
  std::size_t item;   // in its group
  std::size_t items;  // in a group
  std::uint32_t group;
  std::uint32_t groups;
};

ACCEL_INLINE Place place() {
  const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<1>();
  return {item.get_local_linear_id(), item.get_local_range(0), static_cast<std::uint32_t>(item.get_group_linear_id()),
          static_cast<std::uint32_t>(item.get_group_range(0))};
}

// Calls work(i) for this item's share of the elements below `count`: neighbouring items get neighbours, in rounds.
// Whole rounds come first and the rest after them, and all sizes are unsigned 64-bit, which cannot be taken to wrap: so
// a compiler sees that items touch neighbours, and moves vectors where it would otherwise gather.
template <class Work>
ACCEL_INLINE void for_each_element(const Place& place, std::size_t count, const Work& work) {
  std::size_t round = 0;
  for (; round + place.items <= count; round += place.items) {
    work(round + place.item);
  }
  if (round + place.item < count) {
    work(round + place.item);
  }
}

}  // namespace accel::xpu
