// The CPU kernel. The loops are plain, so the compiler turns them into vectors (-fopenmp-simd).

#include <cmath>
#include <cstring>

#include "add_rms_norm.h"

namespace my_ops_kernels {
namespace {

float to_float(float value) { return value; }
float to_float(BFloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

void store(float value, float& to) { to = value; }
// To nearest even; NaN stays NaN.
void store(float value, BFloat16& to) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<std::uint16_t>(value == value ? rounded : 0x7fc0u);
}

}  // namespace

template <class T>
void add_rms_norm_cpu(const AddRmsNorm<T>& norm, std::int64_t first, std::int64_t last) {
  const std::int64_t columns = norm.columns;
  const T* const weight = norm.weight;
  for (std::int64_t row = first; row < last; ++row) {
    T* const out = norm.out + row * columns;
    T* const residual = norm.residual + row * columns;
    const T* const x = norm.x + row * columns;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < columns; ++i) {
      store(to_float(x[i]) + to_float(residual[i]), residual[i]);
      const float value = to_float(residual[i]);
      squares += value * value;
    }
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(columns) + norm.eps);
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) {
      store(to_float(residual[i]) * scale * to_float(weight[i]), out[i]);
    }
  }
}

template void add_rms_norm_cpu(const AddRmsNorm<float>&, std::int64_t, std::int64_t);
template void add_rms_norm_cpu(const AddRmsNorm<BFloat16>&, std::int64_t, std::int64_t);

}  // namespace my_ops_kernels
