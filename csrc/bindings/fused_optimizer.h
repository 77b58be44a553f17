// The ops of an optimizer that runs on the device of its tensors: the CPU, or a CUDA device in a binary built with
// ACCEL_WITH_CUDA. Made from its declaration in kernels/formulas/, whose first option is lr.
//
// The ops are those of fused_ops.h. On a device nothing is read back, and the host does not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/fused_ops.h"
#include "bindings/host_optimizer.h"

#if defined(ACCEL_WITH_CUDA)
#include "bindings/device_tensors.h"
#include "kernels/cuda/fused_lamb.h"
#include "kernels/cuda/multi_tensor.h"
#include "torch_c/ops.h"

// Every CUDA build of torch has this symbol.
extern "C" __attribute__((visibility("default"))) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#endif

namespace accel {

template <class Optimizer>
class FusedOptimizer {
 public:
  static constexpr std::size_t kStates = Optimizer::kStates.size();

  using Declaration = Optimizer;
  using Host = HostOptimizer<Optimizer>;

  // A checked list of tensors.
  struct Checked {
    CheckedList<typename Host::Kernel> host;
    std::vector<float*> counters;
#if defined(ACCEL_WITH_CUDA)
    DeviceLists device;
#endif
  };

  static Checked check(const TensorLists& lists, const Tensors& steps, const std::string& isa) {
    require_steps(lists, steps);
    Checked checked;
    const std::int32_t device = lists.params.empty() ? -1 : device_of(lists.params[0]);
    if (device < 0) {
      checked.host = Host::check(lists, plain_pass(isa), Host::find);
      checked.counters = step_counters(steps, require_host);
    } else {
      check_on_device(lists, steps, checked);
    }
    return checked;
  }

  static void check_grads(const TensorLists& lists, const std::string& isa, Checked& checked) {
    if (device_of(lists.params[0]) < 0) {
      Host::check_grads(lists, plain_pass(isa), checked.host);
    } else {
      check_grads_on_device(lists, checked);
    }
  }

  // Those on a device are not read: the host would wait for it.
  static void check_counters(const Checked& checked) { next_steps(checked.counters); }

  static void run(const Checked& checked, const ControlAddresses& control, std::int32_t device,
                  const FusedArguments& arguments) {
    if (device < 0) {
      run_on_host(checked, control, arguments);
    } else {
      run_on_device(checked, control, device, arguments);
    }
  }

  static std::string supported_isas() { return accel::supported_isas(); }

  static std::string devices() {
#if defined(ACCEL_WITH_CUDA)
    return "cpu,cuda";
#else
    return "cpu";
#endif
  }

 private:
  static PassArguments plain_pass(const std::string& isa) { return {1.0, false, false, 0, checked_isa(isa)}; }

  static void run_on_host(const Checked& checked, const ControlAddresses& control, FusedArguments arguments) {
    const std::vector<double> steps = next_steps(checked.counters);
    if ((control.noop_flag != nullptr && *control.noop_flag != 0) ||
        (control.found_inf != nullptr && *control.found_inf != 0.0f)) {
      return;
    }
    if (control.lr != nullptr) {
      arguments.options[0] = *control.lr;
    }
    const double factor = control.grad_scale != nullptr ? 1.0 / *control.grad_scale : 1.0;
    const PassArguments pass{arguments.maximize ? -factor : factor, false, false, 0, checked_isa(arguments.isa)};
    if (steps.empty()) {
      const double step = Optimizer::kHasStep ? static_cast<double>(arguments.step) : 1.0;
      Host::run(checked.host, arguments.options, {step}, pass);
      return;
    }
    Host::run(checked.host, arguments.options, steps, pass);
    write_steps(checked.counters, steps);
  }

#if defined(ACCEL_WITH_CUDA)
  static void check_on_device(const TensorLists& lists, const Tensors& steps, Checked& checked) {
    if (!lists.params[0].is_cuda()) {
      refuse("The tensors are not on a CUDA device.", "Use the builder of their device.");
    }
    checked.device = checked_device_lists(lists, steps, Optimizer::kStates);
  }

  static void check_grads_on_device(const TensorLists& lists, Checked& checked) {
    check_device_grads(lists, Optimizer::kStates, checked.device);
  }

  static void require_success(int error) {
    if (error != 0) {
      throw std::runtime_error(std::string("The CUDA kernels could not be started: ") + cuda::error_text(error));
    }
  }

  static void run_on_device(const Checked& checked, const ControlAddresses& control, std::int32_t device,
                            const FusedArguments& arguments) {
    const cuda::Controls controls{control.noop_flag, control.found_inf, control.grad_scale, control.lr,
                                  arguments.maximize};
    const DeviceGuard guard(device);
    void* const stream = ACCEL_TORCH_GET(void*, aoti_torch_get_current_cuda_stream, device);
    require_success(cuda::use_device(device));
    require_success(cuda::advance_steps(checked.device.steps.data(), checked.device.steps.size(), controls, stream));
    const auto& tensors = checked.device.tensors;
    const auto options = Optimizer::options(arguments.options.data());
    const auto step = static_cast<double>(arguments.step);
    if constexpr (Optimizer::kIsTwoPass) {
      // From torch's allocator, on the current stream: during a graph capture, from the graph's own pool. It is freed
      // when this returns, and only work that is queued after the kernels can reuse it.
      const std::size_t bytes = cuda::lamb_workspace_bytes(tensors.data(), tensors.size(), arguments.chunk_size);
      const Tensor workspace = empty_cuda_bytes(static_cast<std::int64_t>(bytes), device);
      require_success(cuda::fused_lamb(tensors.data(), tensors.size(), options, step, controls, arguments.chunk_size,
                                       workspace.data_ptr(), stream));
    } else {
      require_success(cuda::fused_update<Optimizer>(tensors.data(), tensors.size(), options, step, controls,
                                                    arguments.chunk_size, stream));
    }
  }
#else
  [[noreturn]] static void refuse_device() {
    refuse("The tensors are not in host memory; this build of the op has kernels for the CPU only.",
           "Use the builder of their device, for example op_builder.cuda.FusedAdamBuilder.");
  }
  static void check_on_device(const TensorLists&, const Tensors&, Checked&) { refuse_device(); }
  static void check_grads_on_device(const TensorLists&, Checked&) { refuse_device(); }
  static void run_on_device(const Checked&, const ControlAddresses&, std::int32_t, const FusedArguments&) {
    refuse_device();
  }
#endif
};

}  // namespace accel

// At namespace scope of a binding: all ops of one optimizer, registered for the devices that the binary is built for.
#define ACCEL_FUSED_OPS(Optimizer) ::accel::FusedOps<::accel::FusedOptimizer<Optimizer>>::ops()
#if defined(ACCEL_WITH_CUDA)
#define ACCEL_FUSED_OPTIMIZER(Optimizer) ACCEL_OP_TABLE(ACCEL_FUSED_OPS(Optimizer), "CPU", "CUDA")
#else
#define ACCEL_FUSED_OPTIMIZER(Optimizer) ACCEL_OP_TABLE(ACCEL_FUSED_OPS(Optimizer), "CPU")
#endif
