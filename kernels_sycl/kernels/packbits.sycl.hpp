// Bytes to bits and back, in the order of numpy.packbits: rows are packed on their own, each into whole bytes whose
// last is filled up with zeros. In `big` order a byte's first element is its highest bit, else its lowest.
//
// A work-item takes the eight elements of one byte as one 64-bit word.
#pragma once

#include "kernels/platform.h"

namespace accel::xpu {

struct __attribute__((packed)) Unaligned64 {
  std::uint64_t value;
};

// 1 in each byte that is not 0.
ACCEL_INLINE std::uint64_t ones_where_set(std::uint64_t bytes) {
  constexpr std::uint64_t kLow7 = 0x7f7f7f7f7f7f7f7full;
  return ((((bytes & kLow7) + kLow7) | bytes) >> 7) & 0x0101010101010101ull;
}

// The bit of each element in the packed byte, as the bytes of a word: the first element is the lowest byte.
template <bool kBig>
constexpr std::uint64_t kBitOf = kBig ? 0x0102040810204080ull : 0x8040201008040201ull;

// Eight bytes, each 0 or 1, to one. Multiplied by the bits that they belong to in the other order, each arrives at its
// own bit of the highest byte; nothing is carried there, because no two meet.
template <bool kBig>
ACCEL_INLINE std::uint8_t gather_bits(std::uint64_t ones) {
  constexpr std::uint64_t kFactor = kBig ? 0x8040201008040201ull : 0x0102040810204080ull;
  return static_cast<std::uint8_t>((ones * kFactor) >> 56);
}

// The layout: rows of `columns` elements, or of `row_bytes` packed bytes, of which there are `packed_bytes` in all.
struct PackedRows {
  std::int64_t columns;
  std::int64_t row_bytes;
  std::int64_t packed_bytes;
};

// For the packed bytes that are the group's, `piece_bytes` of all: whole(byte, its first element) where it has eight
// elements, else part(byte, its first element, how many).
template <class Whole, class Part>
ACCEL_INLINE void for_each_packed_byte(const PackedRows& rows, std::int64_t piece_bytes, const Whole& whole,
                                       const Part& part) {
  const Place here = place();
  const std::int64_t begin = here.group * piece_bytes;
  const std::int64_t end = begin + piece_bytes < rows.packed_bytes ? begin + piece_bytes : rows.packed_bytes;
  if (begin >= end) {
    return;
  }
  if (rows.row_bytes == rows.packed_bytes) {  // one row: only its last byte can be of fewer elements
    const std::int64_t last = rows.columns / 8;
    for_each_element(here, static_cast<std::size_t>((end < last ? end : last) - begin), [&](std::size_t i) {
      const std::int64_t byte = begin + static_cast<std::int64_t>(i);
      whole(byte, byte * 8);
    });
    if (here.item == 0 && end > last) {
      part(last, last * 8, rows.columns - last * 8);
    }
    return;
  }
  for_each_element(here, static_cast<std::size_t>(end - begin), [&](std::size_t i) {
    const std::int64_t byte = begin + static_cast<std::int64_t>(i);
    const std::int64_t row = byte / rows.row_bytes;
    const std::int64_t column = (byte - row * rows.row_bytes) * 8;
    const std::int64_t first = row * rows.columns + column;
    if (rows.columns - column >= 8) {
      whole(byte, first);
    } else {
      part(byte, first, rows.columns - column);
    }
  });
}

// Elements, each a byte, to packed bytes.
template <bool kBig>
ACCEL_SYCL_FREE_KERNEL void pack_bits(const std::uint8_t* elements, std::uint8_t* packed, std::int64_t columns,
                                      std::int64_t row_bytes, std::int64_t packed_bytes, std::int64_t piece_bytes) {
  for_each_packed_byte(
      {columns, row_bytes, packed_bytes}, piece_bytes,
      [&](std::int64_t byte, std::int64_t first) {
        const std::uint64_t word = reinterpret_cast<const Unaligned64*>(elements + first)->value;
        packed[byte] = gather_bits<kBig>(ones_where_set(word));
      },
      [&](std::int64_t byte, std::int64_t first, std::int64_t count) {
        std::uint64_t word = 0;
        for (std::int64_t i = 0; i < count; ++i) {
          word |= static_cast<std::uint64_t>(elements[first + i]) << (8 * i);
        }
        packed[byte] = gather_bits<kBig>(ones_where_set(word));
      });
}

// The reverse: elements are 0 or 1. The bits that fill up a row's last byte are ignored.
template <bool kBig>
ACCEL_SYCL_FREE_KERNEL void unpack_bits(std::uint8_t* elements, const std::uint8_t* packed, std::int64_t columns,
                                        std::int64_t row_bytes, std::int64_t packed_bytes, std::int64_t piece_bytes) {
  const auto spread = [&](std::int64_t byte) {
    return ones_where_set((packed[byte] * 0x0101010101010101ull) & kBitOf<kBig>);
  };
  for_each_packed_byte(
      {columns, row_bytes, packed_bytes}, piece_bytes,
      [&](std::int64_t byte, std::int64_t first) {
        reinterpret_cast<Unaligned64*>(elements + first)->value = spread(byte);
      },
      [&](std::int64_t byte, std::int64_t first, std::int64_t count) {
        const std::uint64_t word = spread(byte);
        for (std::int64_t i = 0; i < count; ++i) {
          elements[first + i] = static_cast<std::uint8_t>(word >> (8 * i));
        }
      });
}

}  // namespace accel::xpu
