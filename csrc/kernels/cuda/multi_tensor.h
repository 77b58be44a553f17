// What the fused optimizers on CUDA devices have in common, for their callers. No torch, no CUDA header.
//
// All functions only queue work on a stream of the current device: they allocate nothing, wait for nothing and
// read no device memory, so they may be called while the stream is captured into a graph. They return a
// cudaError_t, 0 when all went well.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/multi_tensor_plan.h"

namespace accel::cuda {

// What is decided on the device, when the kernels run. Any pointer may be null.
struct Controls {
  const int* noop_flag;     // not 0: change nothing
  const float* found_inf;   // not 0: change nothing
  const float* grad_scale;  // gradients are divided by it first
  const float* lr;          // in place of the options' lr
  bool maximize;            // follow the gradient, not its opposite
};

// Adds 1 to each of `count` distinct counters, unless `controls` disable the update.
int advance_steps(float* const* steps, std::size_t count, const Controls& controls, void* stream) noexcept;

// Updates parameters and states of `count` tensors by an optimizer whose elements do not influence each other;
// `Optimizer` is the declaration in its header in formulas/. The step is each tensor's own counter (see advance_steps)
// or, where that is null, `step`, counted from 1. A block works on at most `chunk_size` elements of a tensor before it
// goes on to the next; results do not depend on it. Defined in the optimizer's .cu.
template <class Optimizer>
int fused_update(const DeviceTensor* tensors, std::size_t count, const typename Optimizer::Options& options,
                 double step, const Controls& controls, std::int64_t chunk_size, void* stream) noexcept;

// Makes `device` the CUDA runtime's current device in this thread, if it is not.
int use_device(int device) noexcept;

// The runtime's message for an error; static storage.
const char* error_text(int error) noexcept;

}  // namespace accel::cuda
