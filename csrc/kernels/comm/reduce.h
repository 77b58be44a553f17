// Element-wise reductions of the same range of several ranks, in the order of the ranks.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace accel::comm {

enum class Element : std::uint8_t { float32, bfloat16, float16, int32 };
enum class Reduction : std::uint8_t { sum, max, min, avg };

constexpr std::int64_t size_bytes(Element element) {
  return element == Element::float32 || element == Element::int32 ? 4 : 2;
}

// out[i] = sources[0][i] + sources[1][i] + ... for each of `outs`; all have one type. 16-bit floats are summed in float
// and rounded once, int32 wraps around, and max and min propagate NaN. An out may be one of the sources, but must not
// overlap one otherwise.
struct Stretch {
  const void* const* sources;
  int source_count;
  void* const* outs;
  int out_count;
  std::int64_t count;   // elements
  Reduction reduction;  // avg: divided by source_count; not for int32
};
using Reducer = void (*)(const Stretch& stretch);

// Null when `isa` is not supported here. The results do not depend on it.
Reducer find_reducer(cpu::Isa isa, Element element) noexcept;

}  // namespace accel::comm
