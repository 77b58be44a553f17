#include "silu_and_mul.h"

#include <cmath>

namespace acme {

void silu_and_mul(float* out, const float* gate, const float* up, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i) {
    out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
}

}  // namespace acme
