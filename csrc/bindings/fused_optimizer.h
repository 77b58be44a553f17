// The ops of an optimizer that runs where its tensors are: on the CPU, or on a CUDA device where the binary is built
// with ACCEL_WITH_CUDA. Made of a declaration, a class with
// all that host_optimizer.h asks for, its first option being lr, and
//   static constexpr bool kHasStep;   // whether the formula counts steps
//   static int launch(...);           // with ACCEL_WITH_CUDA: the kernels of kernels/cuda/; see run_on_device
//
// All tensors of a call are checked before the first is written, so a refused call changes nothing. On a device
// nothing is read back and nothing is waited for.
//
// As for host_optimizer.h there are two forms: `update` takes all tensors with every call; `prepare` keeps them,
// because passing ten thousand parameters with their gradients and states through torch's dispatcher takes twenty
// milliseconds, where the update takes one.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/stable/accelerator.h>

#include "bindings/host_optimizer.h"

#if defined(ACCEL_WITH_CUDA)
#include "kernels/cuda/multi_tensor.h"

// torch declares it for those who define USE_CUDA; the symbol is there with every CUDA build of torch.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#endif

namespace accel {

// What decides about a call when it runs; each may be missing. On the device of the parameters.
struct ControlTensors {
  std::optional<Tensor> lr;          // float32, in place of the first option
  std::optional<Tensor> noop_flag;   // int32: not 0 means change nothing
  std::optional<Tensor> grad_scale;  // float32: gradients are divided by it first
  std::optional<Tensor> found_inf;   // float32: not 0 means change nothing
};

struct FusedArguments {
  std::vector<double> options;
  std::int64_t step;  // counted from 1; of no effect where tensors have counters of their own
  bool maximize;
  std::int64_t chunk_size;
  std::string isa;
};

// -1 for the CPU.
inline std::int32_t device_of(const Tensor& tensor) { return tensor.is_cpu() ? -1 : tensor.get_device_index(); }

// The address of the only element of a control tensor; null when there is none.
template <class T>
const T* control_data(const std::optional<Tensor>& tensor, const char* role, std::int32_t device) {
  using torch::headeronly::ScalarType;
  if (!tensor.has_value()) {
    return nullptr;
  }
  constexpr bool is_float = std::is_same_v<T, float>;
  if (!is_strided(*tensor) || tensor->numel() != 1 ||
      tensor->scalar_type() != (is_float ? ScalarType::Float : ScalarType::Int)) {
    refuse(std::string(role) + " is no tensor of one " + (is_float ? "float32." : "int32."),
           is_float ? "Pass, for example, torch.ones(1)." : "Pass, for example, torch.zeros(1, dtype=torch.int32).");
  }
  if (device_of(*tensor) != device) {
    refuse(std::string(role) + " is not on the device of the parameters.",
           "Move it there, for example x.to(param.device).");
  }
  return static_cast<const T*>(memory_of(*tensor, {role, Argument::kNoList}, sizeof(T), sizeof(T)));
}

template <class Optimizer>
class FusedOptimizer {
 public:
  static constexpr std::size_t kStates = Optimizer::kStates.size();

  static void define(Library& library) {
    library.def(
        "update(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] states, Tensor(c!)[] steps, Tensor? lr, "
        "Tensor? noop_flag, Tensor? grad_scale, Tensor? found_inf, float[] options, int step, bool maximize, "
        "int chunk_size, str isa) -> ()");
    library.def("prepare(Tensor[] params, Tensor[] grads, Tensor[] states, Tensor[] steps) -> int");
    library.def("replace_grads(int list, Tensor[] grads) -> ()");
    library.def("release_grads(int list) -> ()");
    library.def(
        "update_prepared(int list, Tensor? lr, Tensor? noop_flag, Tensor? grad_scale, Tensor? found_inf, "
        "float[] options, int step, bool maximize, int chunk_size, str isa) -> ()");
    library.def("forget(int list) -> ()");
    library.def("supported_isas() -> str");
    library.def("supports_cuda() -> bool");
  }

  static void implement(Library& library) {
    library.impl("update", TORCH_BOX(&update));
    library.impl("prepare", TORCH_BOX(&prepare));
    library.impl("replace_grads", TORCH_BOX(&replace_grads));
  }

  // For tracing: the ops return nothing and fake tensors have no memory, so there is nothing to do.
  static void implement_meta(Library& library) {
    library.impl("update", TORCH_BOX(&update_meta));
    library.impl("prepare", TORCH_BOX(&prepare_meta));
    library.impl("replace_grads", TORCH_BOX(&replace_grads_meta));
  }

  static void implement_without_tensors(Library& library) {
    library.impl("release_grads", TORCH_BOX(&release_grads));
    library.impl("update_prepared", TORCH_BOX(&update_prepared));
    library.impl("forget", TORCH_BOX(&forget));
    library.impl("supported_isas", TORCH_BOX(&supported_isas));
    library.impl("supports_cuda", TORCH_BOX(&supports_cuda));
  }

 private:
  using Host = HostOptimizer<Optimizer>;

  // A list of tensors and what was made of it.
  struct Checked {
    CheckedList<typename Host::Kernel> host;
    std::vector<StepCounter> counters;
#if defined(ACCEL_WITH_CUDA)
    std::vector<cuda::DeviceTensor> device;
    std::vector<float*> device_steps;
#endif
  };

  static void require_arguments(const FusedArguments& arguments, bool has_counters) {
    if (arguments.options.size() != Optimizer::kOptions) {
      refuse(std::to_string(arguments.options.size()) + " options were given.",
             "Pass " + std::to_string(Optimizer::kOptions) + " numbers.");
    }
    if (Optimizer::kHasStep && !has_counters && arguments.step < 1) {
      refuse("step is " + std::to_string(arguments.step) + "; steps count from 1.", "Pass the number of this update.");
    }
    if (arguments.chunk_size < 1) {
      refuse("chunk_size is " + std::to_string(arguments.chunk_size) + ".",
             "Pass a number of elements, for example 65536.");
    }
  }

  static Checked check(const TensorLists& lists, const Tensors& steps, const std::string& isa) {
    if (!steps.empty() && steps.size() != 1 && steps.size() != lists.params.size()) {
      refuse(std::to_string(lists.params.size()) + " parameters came with " + std::to_string(steps.size()) +
                 " step tensors.",
             "Pass one for each parameter, one for all, or none.");
    }
    Checked checked;
    const std::int32_t device = lists.params.empty() ? -1 : device_of(lists.params[0]);
    if (device < 0) {
      checked.host = Host::check(lists, {1.0, false, false, 0, checked_isa(isa)}, Optimizer::find);
      checked.counters = step_counters(steps);
    } else {
      check_on_device(lists, steps, device, checked);
    }
    return checked;
  }

  static void run(const Checked& checked, const ControlTensors& control, std::int32_t device,
                  const FusedArguments& arguments) {
    if (device < 0) {
      run_on_host(checked, control, arguments);
    } else {
      run_on_device(checked, control, device, arguments);
    }
  }

  static void run_on_host(const Checked& checked, const ControlTensors& control, FusedArguments arguments) {
    const int* const noop_flag = control_data<int>(control.noop_flag, "noop_flag", -1);
    const float* const found_inf = control_data<float>(control.found_inf, "found_inf", -1);
    const float* const grad_scale = control_data<float>(control.grad_scale, "grad_scale", -1);
    const float* const lr = control_data<float>(control.lr, "lr", -1);
    require_arguments(arguments, !checked.counters.empty());
    std::vector<double> steps;
    for (std::size_t i = 0; i < checked.counters.size(); ++i) {
      const double done = checked.counters[i].read();
      if (!(done >= 0 && done <= 9007199254740992.0 && std::floor(done) == done)) {
        refuse(Argument{"step", i}.text() + " is " + std::to_string(done) + "; steps are whole numbers from 0 on.",
               "Load an intact state.");
      }
      steps.push_back(done + 1);
    }
    if ((noop_flag != nullptr && *noop_flag != 0) || (found_inf != nullptr && *found_inf != 0.0f)) {
      return;
    }
    if (lr != nullptr) {
      arguments.options[0] = *lr;
    }
    const double factor = grad_scale != nullptr ? 1.0 / *grad_scale : 1.0;
    const PassArguments pass{arguments.maximize ? -factor : factor, false, false, 0, checked_isa(arguments.isa)};
    if (steps.empty()) {
      const double step = Optimizer::kHasStep ? static_cast<double>(arguments.step) : 1.0;
      Host::run(checked.host, arguments.options, {step}, pass);
      return;
    }
    Host::run(checked.host, arguments.options, steps, pass);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      checked.counters[i].write(steps[i]);
    }
  }

#if defined(ACCEL_WITH_CUDA)
  struct DeviceArray {
    void* data;
    std::int64_t numel;
    DType dtype;

    bool overlaps(const DeviceArray& other) const {
      const auto begin = reinterpret_cast<std::uintptr_t>(data);
      const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data);
      return begin < other_begin + other.numel * size_bytes(other.dtype) &&
             other_begin < begin + numel * size_bytes(dtype);
    }
  };

  static DeviceArray device_array(const Tensor& tensor, const Argument& argument, std::int32_t device) {
    using torch::headeronly::ScalarType;
    if (!is_strided(tensor)) {
      refuse(argument.text() + " is sparse; a dense (strided) tensor is needed.",
             "Pass a dense tensor, for example x.to_dense().");
    }
    if (!tensor.is_cuda() || tensor.get_device_index() != device) {
      refuse(argument.text() + " is not on CUDA device " + std::to_string(device) + ", where the first parameter is.",
             "Pass the tensors of each device in a call of their own.");
    }
    if (!tensor.is_contiguous()) {
      refuse(argument.text() + " is not contiguous; contiguous memory is needed.", "Pass x.contiguous().");
    }
    DeviceArray array{nullptr, tensor.numel(), DType::float32};
    switch (tensor.scalar_type()) {
      case ScalarType::Float:
        break;
      case ScalarType::BFloat16:
        array.dtype = DType::bfloat16;
        break;
      case ScalarType::Half:
        array.dtype = DType::float16;
        break;
      default:
        refuse(argument.text() + " is of type " + type_name(tensor) + "; float32, bfloat16 or float16 is needed.",
               "Convert it, for example x.float().");
    }
    const std::int64_t element_bytes = size_bytes(array.dtype);
    array.data = memory_of(tensor, argument, array.numel * element_bytes, element_bytes);
    return array;
  }

  static cuda::DeviceTensor checked_tensor(const TensorLists& lists, std::size_t index, std::int32_t device) {
    static_assert(kStates <= cuda::kMaxStates, "DeviceTensor has no room for them");
    constexpr std::size_t kArrays = 2 + kStates;
    const std::size_t count = lists.params.size();
    const char* roles[kArrays] = {"param", "grad"};
    DeviceArray arrays[kArrays];
    for (std::size_t k = 0; k < kArrays; ++k) {
      if (k >= 2) {
        roles[k] = Optimizer::kStates[k - 2];
      }
      const Tensor& tensor = k == 0   ? lists.params[index]
                             : k == 1 ? lists.grads[index]
                                      : lists.states[(k - 2) * count + index];
      const Argument argument{roles[k], index};
      arrays[k] = device_array(tensor, argument, device);
      if (arrays[k].numel != arrays[0].numel) {
        refuse(argument.text() + " has " + std::to_string(arrays[k].numel) + " elements; " +
                   std::to_string(arrays[0].numel) + " are needed.",
               "Pass tensors of equal length.");
      }
      if (k >= 2 && arrays[k].dtype != DType::float32 && arrays[k].dtype != arrays[0].dtype) {
        refuse(argument.text() + " is of type " + dtype_name(arrays[k].dtype) + ", its parameter of type " +
                   dtype_name(arrays[0].dtype) + "; a state is of float32 or of its parameter's type.",
               "Convert it, for example x.float().");
      }
      if (k > 2 && arrays[k].dtype != arrays[2].dtype) {
        refuse(std::string("The states ") + roles[2] + " and " + roles[k] + " of tensor " + std::to_string(index) +
                   " are of different types; they must be of one.",
               "Convert one of them.");
      }
      for (std::size_t other = 0; other < k; ++other) {
        if (arrays[k].overlaps(arrays[other])) {
          refuse(argument.text() + " shares memory with its " + roles[other] + ".",
                 "Pass tensors with memory of their own.");
        }
      }
    }
    cuda::DeviceTensor result{};
    result.param = arrays[0].data;
    result.grad = arrays[1].data;
    for (std::size_t k = 0; k < kStates; ++k) {
      result.states[k] = arrays[2 + k].data;
    }
    result.numel = arrays[0].numel;
    result.types = {arrays[0].dtype, arrays[1].dtype, arrays[2].dtype != DType::float32};
    return result;
  }

  static void check_on_device(const TensorLists& lists, const Tensors& steps, std::int32_t device, Checked& checked) {
    lists.require_length(lists.grads, 1, "grad");
    lists.require_length(lists.states, kStates, "state");
    for (std::size_t i = 0; i < steps.size(); ++i) {
      using torch::headeronly::ScalarType;
      const Tensor& step = steps[i];
      if (step.numel() != 1 || step.scalar_type() != ScalarType::Float || !step.is_cuda() ||
          step.get_device_index() != device) {
        refuse(Argument{"step", i}.text() + " is no tensor of one float32 on the device of its parameter.",
               "Pass, for example, torch.zeros((), device=param.device).");
      }
      constexpr std::int64_t kBytes = sizeof(float);
      checked.device_steps.push_back(static_cast<float*>(memory_of(step, {"step", i}, kBytes, kBytes)));
    }
    checked.device.reserve(lists.params.size());
    for (std::size_t i = 0; i < lists.params.size(); ++i) {
      checked.device.push_back(checked_tensor(lists, i, device));
      if (!steps.empty()) {
        checked.device.back().step = checked.device_steps[steps.size() == 1 ? 0 : i];
      }
    }
  }

  static void require_success(int error) {
    if (error != 0) {
      throw std::runtime_error(std::string("The CUDA kernels could not be started: ") + cuda::error_text(error));
    }
  }

  static void run_on_device(const Checked& checked, const ControlTensors& control, std::int32_t device,
                            const FusedArguments& arguments) {
    const cuda::Controls controls{control_data<int>(control.noop_flag, "noop_flag", device),
                                  control_data<float>(control.found_inf, "found_inf", device),
                                  control_data<float>(control.grad_scale, "grad_scale", device),
                                  control_data<float>(control.lr, "lr", device), arguments.maximize};
    require_arguments(arguments, !checked.device_steps.empty());
    const torch::stable::accelerator::DeviceGuard guard(device);
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    require_success(cuda::use_device(device));
    require_success(
        cuda::advance_steps(checked.device_steps.data(), checked.device_steps.size(), controls, stream));
    require_success(
        Optimizer::launch(checked.device.data(), checked.device.size(), arguments, controls, device, stream));
  }
#else
  [[noreturn]] static void refuse_device() {
    refuse("The tensors are not in host memory, and this build of the op has kernels for the CPU alone.",
           "Use the builder of their device, for example op_builder.cuda.FusedAdamBuilder.");
  }
  static void check_on_device(const TensorLists&, const Tensors&, std::int32_t, Checked&) { refuse_device(); }
  static void run_on_device(const Checked&, const ControlTensors&, std::int32_t, const FusedArguments&) {
    refuse_device();
  }
#endif

  static bool supports_cuda() {
#if defined(ACCEL_WITH_CUDA)
    return true;
#else
    return false;
#endif
  }

  // The ops ----------------------------------------------------------------------------------------------------

  static void update(Tensors params, Tensors grads, Tensors states, Tensors steps, std::optional<Tensor> lr,
                     std::optional<Tensor> noop_flag, std::optional<Tensor> grad_scale, std::optional<Tensor> found_inf,
                     std::vector<double> options, std::int64_t step, bool maximize, std::int64_t chunk_size,
                     std::string isa) {
    if (params.empty()) {
      return;
    }
    const TensorLists lists{std::move(params), std::move(grads), std::move(states), {}, {}};
    const FusedArguments arguments{std::move(options), step, maximize, chunk_size, std::move(isa)};
    run(check(lists, steps, arguments.isa), {lr, noop_flag, grad_scale, found_inf}, device_of(lists.params[0]),
        arguments);
  }

  static void update_meta(Tensors, Tensors, Tensors, Tensors, std::optional<Tensor>, std::optional<Tensor>,
                          std::optional<Tensor>, std::optional<Tensor>, std::vector<double>, std::int64_t, bool,
                          std::int64_t, std::string) {}
  static std::int64_t prepare_meta(Tensors, Tensors, Tensors, Tensors) { return 0; }
  static void replace_grads_meta(std::int64_t, Tensors) {}

  struct Prepared {
    TensorLists lists;
    Tensors steps;
    std::int32_t device = -1;
    Checked checked;
    WatchedTensors watched;  // they may be given other memory in place
    std::string isa;

    void check_again(const std::string& isa_now) {
      if (isa_now == isa && watched.are_unchanged()) {
        return;
      }
      watched.clear();  // a refusal leaves nothing half checked
      device = device_of(lists.params[0]);
      checked = check(lists, steps, isa_now);
      isa = isa_now;
      watched.watch({&lists.params, &lists.grads, &lists.states, &steps});
    }
  };

  using Lists = KeptLists<Prepared>;

  static std::int64_t prepare(Tensors params, Tensors grads, Tensors states, Tensors steps) {
    if (params.empty()) {
      refuse("There are no parameters.", "Prepare a list that has some.");
    }
    auto prepared = std::make_shared<Prepared>();
    prepared->lists = {std::move(params), std::move(grads), std::move(states), {}, {}};
    prepared->steps = std::move(steps);
    return Lists::add(std::move(prepared));
  }

  static void replace_grads(std::int64_t list, Tensors grads) {
    const auto prepared = Lists::find(list);
    prepared->lists.require_length(grads, 1, "grad");
    prepared->lists.grads = std::move(grads);
    prepared->watched.clear();
  }

  static void release_grads(std::int64_t list) {
    const auto prepared = Lists::find(list);
    prepared->watched.clear();
    prepared->lists.grads.clear();
  }

  static void update_prepared(std::int64_t list, std::optional<Tensor> lr, std::optional<Tensor> noop_flag,
                              std::optional<Tensor> grad_scale, std::optional<Tensor> found_inf,
                              std::vector<double> options, std::int64_t step, bool maximize, std::int64_t chunk_size,
                              std::string isa) {
    const auto prepared = Lists::find(list);
    prepared->check_again(isa);
    run(prepared->checked, {lr, noop_flag, grad_scale, found_inf}, prepared->device,
        {std::move(options), step, maximize, chunk_size, std::move(isa)});
  }

  static void forget(std::int64_t list) { Lists::forget(list); }
};

}  // namespace accel

// At namespace scope of a binding: all ops of one optimizer. One function serves both devices; which keys it is
// registered for follows what the binary is built for.
#if defined(ACCEL_WITH_CUDA)
#define ACCEL_FUSED_DEVICE_PARTS(Optimizer) \
  {"CPU", ::accel::FusedOptimizer<Optimizer>::implement}, {"CUDA", ::accel::FusedOptimizer<Optimizer>::implement}
#else
#define ACCEL_FUSED_DEVICE_PARTS(Optimizer) {"CPU", ::accel::FusedOptimizer<Optimizer>::implement}
#endif
#define ACCEL_FUSED_OPTIMIZER(Optimizer)                                                              \
  ACCEL_OP_LIBRARY({nullptr, ::accel::FusedOptimizer<Optimizer>::define},                             \
                   ACCEL_FUSED_DEVICE_PARTS(Optimizer),                                               \
                   {"Meta", ::accel::FusedOptimizer<Optimizer>::implement_meta},                      \
                   {"CompositeExplicitAutograd", ::accel::FusedOptimizer<Optimizer>::implement_without_tensors})
