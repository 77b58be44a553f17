// See cuda_runtime.h.
#pragma once

#include <cstring>

struct __half {
  _Float16 value;
};

inline __half __ushort_as_half(unsigned short bits) {
  __half value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline unsigned short __half_as_ushort(__half value) {
  unsigned short bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float __half2float(__half value) { return static_cast<float>(value.value); }
inline __half __float2half_rn(float value) { return {static_cast<_Float16>(value)}; }
