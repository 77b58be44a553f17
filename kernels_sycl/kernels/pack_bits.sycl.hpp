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

// Which bit of the packed byte is that of each element, as a word's bytes: the first element is the lowest byte.
template <bool kBig>
constexpr std::uint64_t kBitOf = kBig ? 0x0102040810204080ull : 0x8040201008040201ull;

// Eight bytes, each 0 or 1, to one. Multiplied by the bits that they belong to in the other order, each arrives at its
// own bit of the highest byte; nothing is carried there, because no two meet.
template <bool kBig>
ACCEL_INLINE std::uint8_t gather_bits(std::uint64_t ones) {
  constexpr std::uint64_t kFactor = kBig ? 0x8040201008040201ull : 0x0102040810204080ull;
  return static_cast<std::uint8_t>((ones * kFactor) >> 56);
}

// Where a group works: a piece of one row, in packed bytes.
struct RowPiece {
  std::int64_t row;
  std::int64_t begin;
  std::int64_t end;
};

// `pieces` for each row, of `piece_bytes` each but for the last.
ACCEL_INLINE RowPiece row_piece(std::uint32_t group, std::int64_t pieces, std::int64_t piece_bytes,
                                std::int64_t row_bytes) {
  const std::int64_t row = group / pieces;
  const std::int64_t begin = (group - row * pieces) * piece_bytes;
  const std::int64_t end = begin + piece_bytes;
  return {row, begin, end < row_bytes ? end : row_bytes};
}

// Rows of `columns` bytes at `bytes` to rows of (columns + 7) / 8 bytes at `packed`.
template <bool kBig>
ACCEL_SYCL_FREE_KERNEL void pack_bits(const std::uint8_t* bytes, std::uint8_t* packed, std::int64_t columns,
                                   std::int64_t pieces, std::int64_t piece_bytes) {
  const Place here = place();
  const std::int64_t row_bytes = (columns + 7) / 8;
  const RowPiece piece = row_piece(here.group, pieces, piece_bytes, row_bytes);
  const std::uint8_t* const from = bytes + piece.row * columns + piece.begin * 8;
  std::uint8_t* const to = packed + piece.row * row_bytes + piece.begin;
  const std::int64_t rest = columns - piece.begin * 8;  // elements up to the end of the row
  const std::int64_t whole = rest / 8 < piece.end - piece.begin ? rest / 8 : piece.end - piece.begin;
  for_each_element(here, static_cast<std::size_t>(whole), [&](std::size_t i) {
    const std::uint64_t word = reinterpret_cast<const Unaligned64*>(from)[i].value;
    to[i] = gather_bits<kBig>(ones_where_set(word));
  });
  if (here.item == 0 && whole < piece.end - piece.begin) {  // the row's last byte, of fewer elements
    std::uint64_t word = 0;
    for (std::int64_t i = whole * 8; i < rest; ++i) {
      word |= static_cast<std::uint64_t>(from[i]) << (8 * (i - whole * 8));
    }
    to[whole] = gather_bits<kBig>(ones_where_set(word));
  }
}

// The reverse: elements are 0 or 1. The bits that fill up a row's last byte are not looked at.
template <bool kBig>
ACCEL_SYCL_FREE_KERNEL void unpack_bits(const std::uint8_t* packed, std::uint8_t* bytes, std::int64_t columns,
                                     std::int64_t pieces, std::int64_t piece_bytes) {
  const Place here = place();
  const std::int64_t row_bytes = (columns + 7) / 8;
  const RowPiece piece = row_piece(here.group, pieces, piece_bytes, row_bytes);
  const std::uint8_t* const from = packed + piece.row * row_bytes + piece.begin;
  std::uint8_t* const to = bytes + piece.row * columns + piece.begin * 8;
  const std::int64_t rest = columns - piece.begin * 8;
  const std::int64_t whole = rest / 8 < piece.end - piece.begin ? rest / 8 : piece.end - piece.begin;
  const auto spread = [&](std::int64_t i) {
    return ones_where_set((from[i] * 0x0101010101010101ull) & kBitOf<kBig>);
  };
  for_each_element(here, static_cast<std::size_t>(whole), [&](std::size_t i) {
    reinterpret_cast<Unaligned64*>(to)[i].value = spread(static_cast<std::int64_t>(i));
  });
  if (here.item == 0 && whole < piece.end - piece.begin) {
    const std::uint64_t word = spread(whole);
    for (std::int64_t i = whole * 8; i < rest; ++i) {
      to[i] = static_cast<std::uint8_t>(word >> (8 * (i - whole * 8)));
    }
  }
}

}  // namespace accel::xpu
