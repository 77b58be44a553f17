// For bindings written with torch's own classes, the LibTorch Stable ABI for target 2.10: its Tensor and TORCH_BOX beside
// our registration. Ours do without them (torch_c/), as they take a second or two to compile. Include it before any
// header of torch_c/.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>  // without it the link misses functions of Tensor

// TORCH_BOX passes values as its headers do.
#define ACCEL_BOXED_BY_TORCH TORCH_ABI_VERSION
#include "torch_c/library.h"
