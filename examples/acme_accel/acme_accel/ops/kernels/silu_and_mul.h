// The kernel: raw pointers, sizes, plain C++. It knows no torch.
#pragma once

#include <cstdint>

namespace acme {

// out[i] = silu(gate[i]) * up[i], where silu(x) = x / (1 + exp(-x)), for i from `first` to before `last`.
// out may be gate or up.
void silu_and_mul(float* out, const float* gate, const float* up, std::int64_t first, std::int64_t last);

}  // namespace acme
