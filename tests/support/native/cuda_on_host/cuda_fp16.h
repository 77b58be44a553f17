// See cuda_runtime.h.
#pragma once

#include <cmath>
#include <cstdint>

struct __half {
  std::uint16_t bits;
};

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }

inline float __half2float(__half value) {
  const int exponent = (value.bits >> 10) & 31;
  const int fraction = value.bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(value.bits & 0x8000 ? -magnitude : magnitude);
}

inline __half __float2half_rn(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return {0x7fff};
  }
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) {
    return {static_cast<std::uint16_t>(sign | 0x7c00)};
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = [0.5, 1) * 2^exponent
  const int last_place = (exponent - 11 < -24 || magnitude == 0.0) ? -24 : exponent - 11;
  const int units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -last_place)));  // to even
  // 1024 to 2048 units of 2^last_place; 2048 carries into the exponent, as it should.
  const int biased = last_place == -24 ? 0 : last_place + 24;
  return {static_cast<std::uint16_t>(sign | (biased * 1024 + units))};
}
