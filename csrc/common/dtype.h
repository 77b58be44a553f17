// Element types that kernels and bindings share. No torch, no std beyond fixed-width integers.
#pragma once

#include <cstdint>

namespace accel {

// Storage of the two 16-bit floating types; arithmetic is always done in float.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

enum class DType : std::uint8_t { float32, bfloat16, float16 };

constexpr std::int64_t size_bytes(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

}  // namespace accel
