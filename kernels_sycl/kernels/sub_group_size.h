// The one size of sub-groups that kernels ask for: all of Intel's GPUs have it, and it is the vectors of a CPU with
// AVX-512. Plain C++: bindings cut work by it.
#pragma once

namespace accel::xpu {

constexpr int kSubGroup = 16;

}  // namespace accel::xpu
