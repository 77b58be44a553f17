// The size of sub-groups that kernels require: all of Intel's GPUs have it, and it is a vector of a CPU with AVX-512.
// Plain C++, because bindings divide work by it.
#pragma once

namespace accel::xpu {

constexpr int kSubGroup = 16;

}  // namespace accel::xpu
