// See cuda_runtime.h.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) {
    return {0x7fff};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
