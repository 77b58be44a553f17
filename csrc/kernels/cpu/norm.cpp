// Sums of squares.
#if !defined(ACCEL_TARGET_NAMESPACE)

#include "kernels/cpu/norm.h"

#include <cstddef>

#define ACCEL_KERNEL "kernels/cpu/norm.cpp"
#include "kernels/cpu/each_isa.h"

namespace accel::cpu {

SumOfSquares find_sum_of_squares(Isa isa, DType type) noexcept {
  return isa_supported(isa) ? ACCEL_CALL_TARGET(isa, kernel_of(type)) : nullptr;
}

}  // namespace accel::cpu

#else

#include "kernels/cpu/double_inl.h"

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

template <class T>
double sum_of_squares(const void* values, std::int64_t count) {
  constexpr int kUnroll = 2;  // four chains of additions hide their latency
  constexpr std::int64_t kStep = kUnroll * kLanes;
  const T* const source = static_cast<const T*>(values);
  F64 sums[2 * kUnroll] = {};
  const auto add = [&](const T* from) __attribute__((always_inline)) {
    for (int u = 0; u < kUnroll; ++u) {
      const F32 v = load(from + u * kLanes);
      const F64 low = low_half(v);
      const F64 high = high_half(v);
      sums[2 * u] += low * low;
      sums[2 * u + 1] += high * high;
    }
  };
  const std::int64_t rest = count % kStep;
  for (std::int64_t i = 0; i < count - rest; i += kStep) {
    __builtin_prefetch(source + i + 512, 0);
    add(source + i);
  }
  if (rest != 0) {
    T padded[kStep] = {};
    __builtin_memcpy(padded, source + count - rest, rest * sizeof(T));
    add(padded);
  }
  return sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

SumOfSquares kernel_of(DType type) noexcept {
  switch (type) {
    case DType::float32:
      return sum_of_squares<float>;
    case DType::bfloat16:
      return sum_of_squares<BFloat16>;
    case DType::float16:
      return sum_of_squares<Float16>;
  }
  return nullptr;
}

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE

#endif
