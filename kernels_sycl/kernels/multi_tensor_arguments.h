// The arguments of the fused optimizers' kernels, all by value: a launch keeps nothing alive and copies nothing. Plain
// C++, because bindings fill them in.
//
// Devices take 2,048 bytes of arguments at least. 32 tensors of an optimizer with two states take 1,700.
#pragma once

#include <cstdint>

#include "kernels/formulas/adam.h"
#include "kernels/formulas/lion.h"
#include "kernels/multi_tensor/table.h"

namespace accel::xpu {

constexpr int kTensorsPerLaunch = 32;
constexpr int kStepsPerLaunch = 128;

template <int kPointers>
using TensorTable = multi_tensor::BoundedTable<kPointers, kTensorsPerLaunch>;

// What is decided on the device, when the kernels run. Any pointer may be null.
struct Controls {
  const std::int32_t* noop_flag;  // not 0: change nothing
  const float* found_inf;         // not 0: change nothing
  const float* grad_scale;        // gradients are divided by it first
  const float* lr;                // in place of the numbers' lr
  std::int32_t maximize;          // follow the gradient, not its opposite
};

// An optimizer's numbers: coefficients for the lr and step that the host knows, and what is needed to compute them
// again if these are tensors. In float: a device may lack double. With L = log(beta), 1 - beta^t = -expm1(L * t), which
// in float is right to a few units of its last bit for any t; 1 - pow(beta, t) would lose all but ten of its bits.
struct AdamNumbers {
  AdamCoefficients coefficients;
  float lr;
  float decay_rate;  // weight_decay in AdamW mode, 0 in L2 mode
  float correction1;
  float log_beta1;
  float log_beta2;
  std::int32_t bias_correction;
};

struct LionNumbers {
  LionCoefficients coefficients;
  float weight_decay;
};

struct StepTable {
  float* steps[kStepsPerLaunch];
  std::int32_t count;
};

static_assert(sizeof(TensorTable<5>) + sizeof(AdamNumbers) + sizeof(Controls) <= 2048, "too much for some devices");

}  // namespace accel::xpu
