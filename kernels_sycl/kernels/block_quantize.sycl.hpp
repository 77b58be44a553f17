// Symmetric quantisation by blocks: each block of a tensor's elements has a scale, its largest magnitude divided by
// the largest code, and codes, its elements divided by the scale, to nearest even. Codes are signed: of eight bits in
// [-127, 127], or of four in [-7, 7], two a byte, the first in the low half. A block whose scale would not be a normal
// float becomes zeros, with scale 0. One with a NaN or an infinity gets the scale NaN, so it comes back as NaN.
//
// A sub-group takes one block after another, its work-items neighbouring bytes of codes.
#pragma once

#include <type_traits>

#include "kernels/sub_groups.h"

namespace accel::xpu {

template <int kBits>
constexpr float kLargestCode = static_cast<float>((1 << (kBits - 1)) - 1);

template <int kBits>
constexpr int kCodesPerByte = 8 / kBits;

// Two neighbours, moved as one word: an item that moved them singly would make every second element's a gather.
template <class T>
struct __attribute__((packed)) PairOf {
  using Half = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  using Word = std::conditional_t<sizeof(T) == 4, std::uint64_t, std::uint32_t>;
  static constexpr int kHalfBits = 8 * sizeof(T);
  Word word;

  ACCEL_INLINE T first() const { return __builtin_bit_cast(T, static_cast<Half>(word)); }
  ACCEL_INLINE T second() const { return __builtin_bit_cast(T, static_cast<Half>(word >> kHalfBits)); }
  ACCEL_INLINE void set(T first, T second) {
    word = static_cast<Word>(__builtin_bit_cast(Half, first)) | static_cast<Word>(__builtin_bit_cast(Half, second))
                                                                    << kHalfBits;
  }
};

// The code of an element, 1 / scale being `factor`. NaN becomes a number, as it must before it is converted.
template <int kBits>
ACCEL_INLINE std::int32_t encode(float value, float factor) {
  const float bounded = sycl::fmax(sycl::fmin(value * factor, kLargestCode<kBits>), -kLargestCode<kBits>);
  return static_cast<std::int32_t>(sycl::rint(bounded));
}

template <int kBits>
ACCEL_INLINE float scale_of(float magnitude) {
  constexpr float kLargestFloat = 0x1.fffffep127f;
  if (!(magnitude <= kLargestFloat)) {
    return float_of(0x7fc00000u);  // NaN, also for infinity: which of a block's elements it was is lost
  }
  if (magnitude < kLargestCode<kBits> * 0x1p-126f) {
    return 0.0f;
  }
  const float scale = magnitude / kLargestCode<kBits>;
  // Rounded up, the largest float would come back as infinity.
  return scale * kLargestCode<kBits> <= kLargestFloat ? scale : float_of(bits_of(scale) - 1);
}

// Calls work(first, count, block) for each block that is this sub-group's: `per_sub_group` of them, one after another.
template <class Work>
ACCEL_INLINE void for_each_block(std::int64_t numel, std::int64_t block, std::int64_t per_sub_group, const Work& work) {
  const std::int64_t blocks = (numel + block - 1) / block;
  const std::int64_t begin = sub_group_number() * per_sub_group;
  const std::int64_t end = begin + per_sub_group < blocks ? begin + per_sub_group : blocks;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t rest = numel - i * block;
    work(i * block, rest < block ? rest : block, i);
  }
}

template <class T, int kBits>
ACCEL_REDUCING_KERNEL void block_quantize(const T* values, std::uint8_t* codes, float* scales, std::int64_t numel,
                                          std::int64_t block, std::int64_t per_sub_group) {
  const Place here = sub_group_place();
  for_each_block(numel, block, per_sub_group, [&](std::int64_t first, std::int64_t count, std::int64_t number) {
    const T* const from = values + first;
    // Magnitudes are compared as integers: that is their order, with NaN above all.
    std::uint32_t largest = 0;
    for_each_element(here, static_cast<std::size_t>(count), [&](std::size_t i) {
      const std::uint32_t magnitude = bits_of(to_float(from[i])) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    });
    const float magnitude = float_of(largest_of_sub_group(largest));
    const float scale = scale_of<kBits>(magnitude);
    const float factor = scale > 0.0f ? kLargestCode<kBits> / magnitude : 0.0f;
    if (here.item == 0) {
      scales[number] = scale;
    }
    std::uint8_t* const to = codes + first / kCodesPerByte<kBits>;
    if constexpr (kBits == 8) {
      for_each_element(here, static_cast<std::size_t>(count), [&](std::size_t i) {
        to[i] = static_cast<std::uint8_t>(encode<kBits>(to_float(from[i]), factor));
      });
    } else {
      for_each_element(here, static_cast<std::size_t>(count / 2), [&](std::size_t i) {
        const PairOf<T> pair = reinterpret_cast<const PairOf<T>*>(from)[i];
        const std::int32_t low = encode<kBits>(to_float(pair.first()), factor);
        const std::int32_t high = encode<kBits>(to_float(pair.second()), factor);
        to[i] = static_cast<std::uint8_t>((low & 15) | (high << 4));
      });
      if (here.item == 0 && count % 2 != 0) {
        to[count / 2] = static_cast<std::uint8_t>(encode<kBits>(to_float(from[count - 1]), factor) & 15);
      }
    }
  });
}

// The reverse: codes times their block's scale, in float, rounded once to T.
template <class T, int kBits>
ACCEL_REDUCING_KERNEL void block_dequantize(T* values, const std::uint8_t* codes, const float* scales,
                                            std::int64_t numel, std::int64_t block, std::int64_t per_sub_group) {
  const Place here = sub_group_place();
  for_each_block(numel, block, per_sub_group, [&](std::int64_t first, std::int64_t count, std::int64_t number) {
    const float scale = scales[number];
    const std::uint8_t* const from = codes + first / kCodesPerByte<kBits>;
    T* const to = values + first;
    if constexpr (kBits == 8) {
      for_each_element(here, static_cast<std::size_t>(count), [&](std::size_t i) {
        from_float(static_cast<float>(static_cast<std::int8_t>(from[i])) * scale, to[i]);
      });
    } else {
      for_each_element(here, static_cast<std::size_t>(count / 2), [&](std::size_t i) {
        const std::int32_t byte = static_cast<std::int8_t>(from[i]);
        T first_value;
        T second_value;
        from_float(static_cast<float>((byte << 28) >> 28) * scale, first_value);
        from_float(static_cast<float>(byte >> 4) * scale, second_value);
        reinterpret_cast<PairOf<T>*>(to)[i].set(first_value, second_value);
      });
      if (here.item == 0 && count % 2 != 0) {
        const std::int32_t byte = from[count / 2];
        from_float(static_cast<float>((byte << 28) >> 28) * scale, to[count - 1]);
      }
    }
  });
}

}  // namespace accel::xpu
