// The Runner of fused_ops.h with SYCL kernels: on host memory with a SYCL CPU device, on XPU devices with torch's
// current stream. It is made from a class that derives from the optimizer's declaration in kernels/formulas/, with
//   using Numbers = ...;                                      // the arguments of its kernels
//   static Numbers numbers(const double* options, double step);
//   static const xpu::Kernel& kernel(const multi_tensor::StoredTypes& types);
//   static const xpu::Kernel& advance_steps();                // of its own library
//
// Both kinds of memory share one path: the kernels read control tensors, even where the host could. Nothing is read
// back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "bindings/device_tensors.h"
#include "bindings/fused_ops.h"
#include "bindings/groups.h"
#include "host/launch.h"
#include "host/tensor_stream.h"
#include "kernels/multi_tensor_arguments.h"

namespace accel::xpu {

// Kernels are listed by types: float32 parameters with each gradient, then the 16-bit types, for each gradient with
// states of float32 and of their own type.
inline std::size_t kernel_index(const multi_tensor::StoredTypes& types) {
  const std::size_t grad = static_cast<std::size_t>(types.grad);
  if (types.param == DType::float32) {
    return grad;
  }
  return 3 + (static_cast<std::size_t>(types.param) - 1) * 6 + grad * 2 + (types.states_as_param ? 1 : 0);
}

#define ACCEL_SYCL_FOR_STORED_TYPES(kernel)                                         \
  {                                                                                 \
      ACCEL_SYCL_KERNEL(kernel<float, float, float>),                               \
      ACCEL_SYCL_KERNEL(kernel<float, accel::BFloat16, float>),                     \
      ACCEL_SYCL_KERNEL(kernel<float, accel::Float16, float>),                      \
      ACCEL_SYCL_KERNEL(kernel<accel::BFloat16, float, float>),                     \
      ACCEL_SYCL_KERNEL(kernel<accel::BFloat16, float, accel::BFloat16>),           \
      ACCEL_SYCL_KERNEL(kernel<accel::BFloat16, accel::BFloat16, float>),           \
      ACCEL_SYCL_KERNEL(kernel<accel::BFloat16, accel::BFloat16, accel::BFloat16>), \
      ACCEL_SYCL_KERNEL(kernel<accel::BFloat16, accel::Float16, float>),            \
      ACCEL_SYCL_KERNEL(kernel<accel::BFloat16, accel::Float16, accel::BFloat16>),  \
      ACCEL_SYCL_KERNEL(kernel<accel::Float16, float, float>),                      \
      ACCEL_SYCL_KERNEL(kernel<accel::Float16, float, accel::Float16>),             \
      ACCEL_SYCL_KERNEL(kernel<accel::Float16, accel::BFloat16, float>),            \
      ACCEL_SYCL_KERNEL(kernel<accel::Float16, accel::BFloat16, accel::Float16>),   \
      ACCEL_SYCL_KERNEL(kernel<accel::Float16, accel::Float16, float>),             \
      ACCEL_SYCL_KERNEL(kernel<accel::Float16, accel::Float16, accel::Float16>),    \
  }

// Elements of a chunk: eight chunks for each unit, so that none works much longer than the others, but no more than
// the caller's bound and at least what starting a group is worth.
inline std::int32_t chunk_elements(const Device& device, std::int64_t total, std::int64_t most) {
  constexpr std::int64_t kLeast = 2048;
  constexpr std::int64_t kLargest = std::int64_t{1} << 24;
  const std::int64_t even = multi_tensor::ceil_divide(total, std::int64_t{device.compute_units} * 8);
  const std::int64_t limit = std::clamp(most / kLeast * kLeast, kLeast, kLargest);
  return static_cast<std::int32_t>(std::clamp(multi_tensor::round_up(even, kLeast), kLeast, limit));
}

template <class Optimizer>
class FusedRunner {
 public:
  static constexpr std::size_t kStates = Optimizer::kStates.size();

  using Declaration = Optimizer;

  struct Checked {
    DeviceLists lists;
    std::optional<Tensor> first;  // selects the stream
  };

  static Checked check(const TensorLists& lists, const Tensors& steps, const std::string&) {
    require_steps(lists, steps);
    return {checked_device_lists(lists, steps, Optimizer::kStates), lists.params[0]};
  }

  static void check_grads(const TensorLists& lists, const std::string&, Checked& checked) {
    check_device_grads(lists, Optimizer::kStates, checked.lists);
  }

  static void check_counters(const Checked&) {}  // only kernels read them

  static void run(const Checked& checked, const ControlAddresses& control, std::int32_t,
                  const FusedArguments& arguments) {
    const DeviceLists& lists = checked.lists;
    const Controls controls{control.noop_flag, control.found_inf, control.grad_scale, control.lr,
                            arguments.maximize ? 1 : 0};
    Stream stream = stream_for(*checked.first);
    advance(stream, lists, controls);
    const double step = lists.steps.empty() && Optimizer::kHasStep ? static_cast<double>(arguments.step) : 1.0;
    update(stream, lists, Optimizer::numbers(arguments.options.data(), step), controls, arguments.chunk_size);
    stream.finish();
  }

  static std::string supported_isas() { return ""; }  // a SYCL device compiles for itself
  static std::string devices() { return "cpu,xpu"; }

 private:
  static constexpr int kPointers = 2 + static_cast<int>(kStates) + (Optimizer::kHasStep ? 1 : 0);

  static void advance(Stream& stream, const DeviceLists& lists, const Controls& controls) {
    StepTable table;
    for (std::size_t first = 0; first < lists.steps.size(); first += kStepsPerLaunch) {
      const std::size_t count = std::min<std::size_t>(lists.steps.size() - first, kStepsPerLaunch);
      std::memcpy(table.steps, lists.steps.data() + first, count * sizeof(float*));
      table.count = static_cast<std::int32_t>(count);
      launch(stream, Optimizer::advance_steps(), {1, 1}, table, controls);
    }
  }

  static void fill(void* (*pointers)[kTensorsPerLaunch], int i, const multi_tensor::DeviceTensor& tensor) {
    pointers[0][i] = tensor.param;
    pointers[1][i] = const_cast<void*>(tensor.grad);
    for (std::size_t k = 0; k < kStates; ++k) {
      pointers[2 + k][i] = tensor.states[k];
    }
    if constexpr (Optimizer::kHasStep) {
      pointers[2 + kStates][i] = tensor.step;
    }
  }

  static void update(Stream& stream, const DeviceLists& lists, const typename Optimizer::Numbers& numbers,
                     const Controls& controls, std::int64_t most) {
    std::optional<multi_tensor::StoredTypes> types_of[multi_tensor::kTypeCodes];
    for (const multi_tensor::DeviceTensor& tensor : lists.tensors) {
      types_of[multi_tensor::type_code(tensor.types)] = tensor.types;
    }
    const Device& device = stream.device();
    for (int code = 0; code < multi_tensor::kTypeCodes; ++code) {
      if (!types_of[code].has_value()) {
        continue;
      }
      const Kernel& kernel = Optimizer::kernel(*types_of[code]);
      multi_tensor::for_each_table<TensorTable<kPointers>>(
          lists.tensors.data(), lists.tensors.size(), code, fill,
          [&](std::int64_t total) { return chunk_elements(device, total, most); },
          [&](const TensorTable<kPointers>& table) {
            launch(stream, kernel, {table.chunks(), group_items(device)}, table, numbers, controls);
            return 0;
          });
    }
  }
};

}  // namespace accel::xpu

// At namespace scope of a binding: all ops of one optimizer.
#define ACCEL_SYCL_FUSED_OPTIMIZER(Optimizer) \
  ACCEL_OP_TABLE(::accel::FusedOps<::accel::xpu::FusedRunner<Optimizer>>::ops(), "CPU", "XPU")
