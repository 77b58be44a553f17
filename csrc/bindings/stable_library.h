// For bindings that use torch's own classes, the LibTorch Stable ABI for target 2.10: its Tensor and TORCH_BOX,
// together with our registration. Our own bindings use torch_c/ instead, because torch's classes take a second or two
// to compile. Include it before any header of torch_c/.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>  // without it the link misses functions of Tensor

// TORCH_BOX passes values as its headers do.
#define ACCEL_BOXED_BY_TORCH TORCH_ABI_VERSION
#include "torch_c/library.h"
