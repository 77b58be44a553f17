// The ops of an optimizer that runs on the device of its tensors: schemas and prepared lists. A Runner implements them
// for its devices; a class with
//   using Declaration = ...;                           // as in kernels/formulas/
//   struct Checked;                                    // a checked list of tensors
//   static Checked check(const TensorLists&, const Tensors& steps, const std::string& isa);
//   static void check_grads(const TensorLists&, const std::string& isa, Checked&);  // nothing else changed
//   static void check_counters(const Checked&);        // rejects counters in host memory that are no counts
//   static void run(const Checked&, const ControlAddresses&, std::int32_t device, const FusedArguments&);
//   static std::string supported_isas();               // of the CPU's kernels, best last, with commas between
//   static std::string devices();                      // types of devices, with commas between
//
// All tensors of a call are checked before the first is written, so a refused call changes nothing.
//
// As for host_optimizer.h there are two forms: `update` takes all tensors with every call; `prepare` keeps them,
// because passing ten thousand parameters with their gradients and states through torch's dispatcher takes twenty
// milliseconds, where the update takes one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/host_tensors.h"
#include "bindings/prepared_lists.h"
#include "torch_c/op_table.h"

namespace accel {

// Settings that are read when a call runs, on the device of the parameters; each may be missing.
struct ControlTensors {
  std::optional<Tensor> lr;          // float32, in place of the first option
  std::optional<Tensor> noop_flag;   // int32: not 0 means change nothing
  std::optional<Tensor> grad_scale;  // float32: gradients are divided by it first
  std::optional<Tensor> found_inf;   // float32: not 0 means change nothing
};

// The addresses of the elements of ControlTensors, null where one is missing.
struct ControlAddresses {
  const float* lr;
  const int* noop_flag;
  const float* grad_scale;
  const float* found_inf;
};

struct FusedArguments {
  std::vector<double> options;
  std::int64_t step;  // counted from 1; ignored for tensors with step counters
  bool maximize;
  std::int64_t chunk_size;
  std::string isa;
};

// Refuses arguments that do not fit an optimizer of `options` numbers.
inline void require_arguments(const FusedArguments& arguments, std::size_t options, bool needs_step) {
  if (arguments.options.size() != options) {
    refuse(std::to_string(arguments.options.size()) + " options were given.",
           "Pass " + std::to_string(options) + " numbers.");
  }
  if (needs_step && arguments.step < 1) {
    refuse("step is " + std::to_string(arguments.step) + "; steps count from 1.", "Pass the number of this update.");
  }
  if (arguments.chunk_size < 1) {
    refuse("chunk_size is " + std::to_string(arguments.chunk_size) + ".",
           "Pass a number of elements, for example 65536.");
  }
}

inline void require_steps(const TensorLists& lists, const Tensors& steps) {
  if (!steps.empty() && steps.size() != 1 && steps.size() != lists.params.size()) {
    refuse(std::to_string(lists.params.size()) + " parameters came with " + std::to_string(steps.size()) +
               " step tensors.",
           "Pass one for each parameter, one for all, or none.");
  }
}

// -1 for the CPU.
inline std::int32_t device_of(const Tensor& tensor) { return tensor.is_cpu() ? -1 : tensor.device_index(); }

// The address of the only element of a control tensor; null if it is missing.
template <class T>
const T* control_data(const std::optional<Tensor>& tensor, const char* role, std::int32_t device) {
  if (!tensor.has_value()) {
    return nullptr;
  }
  constexpr bool is_float = std::is_same_v<T, float>;
  if (!tensor->is_strided() || tensor->numel() != 1 ||
      tensor->scalar_type() != (is_float ? ScalarType::Float : ScalarType::Int)) {
    refuse(std::string(role) + " is not a tensor of one " + (is_float ? "float32." : "int32."),
           is_float ? "Pass, for example, torch.ones(1)." : "Pass, for example, torch.zeros(1, dtype=torch.int32).");
  }
  if (device_of(*tensor) != device) {
    refuse(std::string(role) + " is not on the device of the parameters.",
           "Move it there, for example x.to(param.device).");
  }
  return static_cast<const T*>(memory_of(*tensor, {role, Argument::kNoList}, sizeof(T), sizeof(T)));
}

inline ControlAddresses addresses_of(const ControlTensors& control, std::int32_t device) {
  return {control_data<float>(control.lr, "lr", device), control_data<int>(control.noop_flag, "noop_flag", device),
          control_data<float>(control.grad_scale, "grad_scale", device),
          control_data<float>(control.found_inf, "found_inf", device)};
}

template <class Runner>
class FusedOps {
 public:
  static Ops ops() {
    Ops all = Lists::ops();
    all.insert(all.end(),
               {{"update(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] states, Tensor(c!)[] steps, Tensor? lr, "
                 "Tensor? noop_flag, Tensor? grad_scale, Tensor? found_inf, float[] options, int step, bool maximize, "
                 "int chunk_size, str isa) -> ()",
                 ACCEL_BOX_TRACED(&update)},
                {"prepare(Tensor[] params, Tensor[] grads, Tensor[] states, Tensor[] steps) -> int",
                 ACCEL_BOX_TRACED(&prepare)},
                {"update_prepared(int list, Tensor? lr, Tensor? noop_flag, Tensor? grad_scale, Tensor? found_inf, "
                 "float[] options, int step, bool maximize, int chunk_size, str isa, bool check_only) -> ()",
                 ACCEL_BOX(&update_prepared)},
                {"supported_isas() -> str", ACCEL_BOX(&Runner::supported_isas)},
                {"devices() -> str", ACCEL_BOX(&Runner::devices)},
                {"declaration() -> str", ACCEL_BOX(&declaration_of<typename Runner::Declaration>)}});
    return all;
  }

 private:
  static constexpr std::size_t kOptions = Runner::Declaration::kOptions.size();
  static constexpr bool kHasStep = Runner::Declaration::kHasStep;

  static void update(Tensors params, Tensors grads, Tensors states, Tensors steps, std::optional<Tensor> lr,
                     std::optional<Tensor> noop_flag, std::optional<Tensor> grad_scale, std::optional<Tensor> found_inf,
                     std::vector<double> options, std::int64_t step, bool maximize, std::int64_t chunk_size,
                     std::string isa) {
    if (params.empty()) {
      return;
    }
    const TensorLists lists{std::move(params), std::move(grads), std::move(states), {}};
    const ControlTensors control{std::move(lr), std::move(noop_flag), std::move(grad_scale), std::move(found_inf)};
    const FusedArguments arguments{std::move(options), step, maximize, chunk_size, std::move(isa)};
    const std::int32_t device = device_of(lists.params[0]);
    const auto checked = Runner::check(lists, steps, arguments.isa);
    require_arguments(arguments, kOptions, kHasStep && steps.empty());
    Runner::run(checked, addresses_of(control, device), device, arguments);
  }

  struct Prepared : PreparedList {
    std::int32_t device = -1;
    typename Runner::Checked checked;
    std::string isa;

    void check_again(const std::string& isa_now) {
      check(
          isa_now != isa,
          [&] {
            device = device_of(lists.params[0]);
            checked = Runner::check(lists, steps, isa_now);
            isa = isa_now;
          },
          [&] { Runner::check_grads(lists, isa, checked); });
    }
  };

  using Lists = PreparedLists<Prepared>;

  static std::int64_t prepare(Tensors params, Tensors grads, Tensors states, Tensors steps) {
    if (params.empty()) {
      refuse("The list has no parameters.", "Prepare a list with parameters.");
    }
    auto prepared = std::make_shared<Prepared>();
    prepared->lists = {std::move(params), std::move(grads), std::move(states), {}};
    prepared->steps = std::move(steps);
    return Lists::add(std::move(prepared));
  }

  // `check_only` refuses what the update would: an update of several lists checks all before it writes to the first.
  static void update_prepared(std::int64_t list, std::optional<Tensor> lr, std::optional<Tensor> noop_flag,
                              std::optional<Tensor> grad_scale, std::optional<Tensor> found_inf,
                              std::vector<double> options, std::int64_t step, bool maximize, std::int64_t chunk_size,
                              std::string isa, bool check_only) {
    const auto prepared = Lists::find(list);
    const Lock lock(prepared->mutex);
    const ControlTensors control{std::move(lr), std::move(noop_flag), std::move(grad_scale), std::move(found_inf)};
    const FusedArguments arguments{std::move(options), step, maximize, chunk_size, std::move(isa)};
    prepared->check_again(arguments.isa);
    require_arguments(arguments, kOptions, kHasStep && prepared->steps.empty());
    const ControlAddresses addresses = addresses_of(control, prepared->device);
    if (check_only) {
      Runner::check_counters(prepared->checked);
    } else {
      Runner::run(prepared->checked, addresses, prepared->device, arguments);
    }
  }
};

}  // namespace accel
