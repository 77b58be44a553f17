// The tensors of an update on the host or a device, checked before anything is written.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "bindings/optimizer_passes.h"
#include "bindings/tensor_checks.h"
#include "bindings/written_ranges.h"
#include "common/mutex.h"
#include "kernels/cpu/optimizer.h"
#include "torch_c/parallel.h"
#include "torch_c/tensor.h"

namespace accel {

using Tensors = std::vector<Tensor>;

inline cpu::Isa checked_isa(const std::string& name) {
  cpu::Isa isa;
  if (cpu::parse_isa(name.c_str(), &isa) && cpu::isa_supported(isa)) {
    return isa;
  }
  std::string allowed;
  for (const cpu::Isa candidate : cpu::kAllIsas) {
    if (cpu::isa_supported(candidate)) {
      allowed += std::string(allowed.empty() ? "" : ", ") + cpu::isa_name(candidate);
    }
  }
  refuse("Instruction set '" + name + "' is not supported here.", "Choose one of: " + allowed + ".");
}

// The supported instruction sets, best last, with commas between.
inline std::string supported_isas() {
  std::string names;
  for (const cpu::Isa isa : cpu::kAllIsas) {
    if (cpu::isa_supported(isa)) {
      names += std::string(names.empty() ? "" : ",") + cpu::isa_name(isa);
    }
  }
  return names;
}

// An optimizer's declaration (kernels/formulas/adam.h) for Python: on a line each its name, its states, its options and
// whether it counts steps.
template <class Optimizer>
std::string declaration_of() {
  const auto joined = [](const auto& names) {
    std::string text;
    for (const char* const name : names) {
      text += std::string(text.empty() ? "" : ",") + name;
    }
    return text + '\n';
  };
  return std::string(Optimizer::kName) + '\n' + joined(Optimizer::kStates) + joined(Optimizer::kOptions) +
         (Optimizer::kHasStep ? "step" : "");
}

// Checking a parameter's tensors takes most of a microsecond: a thread is worth waking for some hundred parameters.
constexpr std::int64_t kGrainChecks = 256;

// Calls check(i) for all i below `count`, on torch's threads. Throws what it throws for the lowest i, as a loop would;
// it may or may not have been called for others.
template <class Check>
void check_each(std::size_t count, const Check& check) {
  Mutex mutex;
  std::exception_ptr rejection;
  std::int64_t rejected = 0;
  parallel_for(0, static_cast<std::int64_t>(count), kGrainChecks, [&](std::int64_t first, std::int64_t last) {
    std::int64_t i = first;
    try {
      for (; i < last; ++i) {
        check(static_cast<std::size_t>(i));
      }
    } catch (...) {  // not through torch, which would change the message
      const Lock lock(mutex);
      if (!rejection || i < rejected) {
        rejection = std::current_exception();
        rejected = i;
      }
    }
  });
  if (rejection) {
    std::rethrow_exception(rejection);
  }
}

// The tensors of one update. `states` holds all of the first state, then all of the second; `copies` may be empty.
// A parameter's random bits depend on its number in `places`, or on its index if that is empty.
struct TensorLists {
  Tensors params;
  Tensors grads;
  Tensors states;
  Tensors copies;
  std::vector<std::int64_t> places = {};

  void require_places() const {
    if (!places.empty() && places.size() != params.size()) {
      refuse(std::to_string(params.size()) + " parameters came with " + std::to_string(places.size()) + " places.",
             "Pass one for each parameter, or none.");
    }
  }
  void require_length(const Tensors& others, std::size_t per_param, const char* role) const {
    if (others.size() != params.size() * per_param) {
      refuse(std::to_string(params.size()) + " parameters came with " + std::to_string(others.size()) + " " + role +
                 " tensors.",
             "Pass " + std::to_string(per_param) + " for each parameter.");
    }
  }
};

// Bytes of an 8-bit state: the codes, then the scales.
inline std::int64_t packed_bytes(std::int64_t numel) {
  return numel + (numel + cpu::kQuantBlock - 1) / cpu::kQuantBlock;
}

// Bytes of a state.
inline std::int64_t state_bytes(const cpu::StoredTypes& types, std::int64_t numel) {
  switch (types.state) {
    case cpu::StateStorage::float32:
      return 4 * numel;
    case cpu::StateStorage::as_param:
      return size_bytes(types.param) * numel;
    case cpu::StateStorage::stochastic_bfloat16:
      return 2 * numel;
    case cpu::StateStorage::blockwise_8bit:
      return packed_bytes(numel);
  }
  return 0;
}

// Calls visit(address, bytes, role, is_grad) for the memory of an item's tensors, null where it lacks one.
template <std::size_t kStates, class Visit>
void for_each_tensor(const UpdateItem& item, const std::array<const char*, kStates>& state_roles, const Visit& visit) {
  const cpu::OptimizerTensors& tensors = item.tensors;
  visit(tensors.param, item.numel * size_bytes(item.types.param), "param", false);
  visit(tensors.grad, item.numel * size_bytes(tensors.grad_type), "grad", true);
  for (std::size_t k = 0; k < kStates; ++k) {
    visit(tensors.states[k], state_bytes(item.types, item.numel), state_roles[k], false);
  }
  visit(tensors.copy, item.numel * size_bytes(tensors.copy_type), "copy", false);
}

// Refuses an item whose tensors share memory.
template <std::size_t kStates>
void require_apart(const UpdateItem& item, std::size_t index, const std::array<const char*, kStates>& state_roles) {
  OwnRanges<3 + kStates> ranges(index);
  for_each_tensor(item, state_roles,
                  [&](const void* data, std::int64_t bytes, const char* role, bool) { ranges.add(data, bytes, role); });
}

inline void require_elements(std::int64_t numel, const Argument& argument, std::int64_t needed,
                             std::int64_t param_numel) {
  if (numel != needed) {
    refuse(argument.text() + " has " + std::to_string(numel) + " elements; " + std::to_string(needed) +
               " are required for a parameter of " + std::to_string(param_numel) + ".",
           "Pass tensors of equal length.");
  }
}

// Sets the gradient of an item that has its parameter; see dense_memory() for `require_place`.
template <class RequirePlace>
void take_grad(const TensorLists& lists, std::size_t index, UpdateItem& item, const RequirePlace& require_place) {
  const FloatMemory grad = float_memory(lists.grads[index], {"grad", index}, require_place);
  require_elements(grad.numel, {"grad", index}, item.numel, item.numel);
  item.types.grad = grad.dtype;
  item.tensors.grad = grad.data;
  item.tensors.grad_type = grad.dtype;
}

// Checks one parameter's tensors; see TensorLists.
template <std::size_t kStates, class RequirePlace>
UpdateItem checked_item(const TensorLists& lists, std::size_t index, const std::array<const char*, kStates>& roles,
                        bool stochastic, const RequirePlace& require_place) {
  static_assert(kStates <= cpu::kMaxStates, "OptimizerTensors has no room for them");
  const std::size_t count = lists.params.size();
  const FloatMemory param = float_memory(lists.params[index], {"param", index}, require_place);
  UpdateItem item{};
  item.numel = param.numel;
  item.place = lists.places.empty() ? index : static_cast<std::uint64_t>(lists.places[index]);
  item.types = {param.dtype, param.dtype, cpu::StateStorage::float32};
  item.tensors.param = param.data;
  take_grad(lists, index, item, require_place);
  for (std::size_t k = 0; k < kStates; ++k) {
    const Tensor& tensor = lists.states[k * count + index];
    const Argument argument{roles[k], index};
    cpu::StateStorage storage = cpu::StateStorage::float32;
    DenseMemory state;
    if (tensor.scalar_type() == ScalarType::Byte) {
      storage = cpu::StateStorage::blockwise_8bit;
      state = dense_memory(tensor, argument, 1, require_place);
    } else {
      const FloatMemory values = float_memory(tensor, argument, require_place);
      state = values;
      if (stochastic && values.dtype == DType::bfloat16) {
        storage = cpu::StateStorage::stochastic_bfloat16;
      } else if (stochastic) {
        refuse(argument.text() + " is of type " + dtype_name(values.dtype) + "; only bfloat16 is rounded at random.",
               "Pass bfloat16 states, or stochastic=False.");
      } else if (values.dtype == param.dtype) {
        storage = cpu::StateStorage::as_param;
      } else if (values.dtype != DType::float32) {
        refuse(argument.text() + " is of type " + dtype_name(values.dtype) + ", its parameter of type " +
                   dtype_name(param.dtype) + "; a state is of float32 or of its parameter's type.",
               "Convert it, for example x.float().");
      }
    }
    if (k > 0 && storage != item.types.state) {
      refuse(std::string("The states ") + roles[0] + " and " + roles[k] + " of tensor " + std::to_string(index) +
                 " are of different types; they must be of one.",
             "Convert one of them.");
    }
    const bool is_packed = storage == cpu::StateStorage::blockwise_8bit;
    require_elements(state.numel, argument, is_packed ? packed_bytes(param.numel) : param.numel, param.numel);
    item.types.state = storage;
    item.tensors.states[k] = state.data;
    item.tensors.scales[k] = is_packed ? reinterpret_cast<std::uint8_t*>(state.data) + param.numel : nullptr;
  }
  if (!lists.copies.empty()) {
    const FloatMemory copy = float_memory(lists.copies[index], {"copy", index}, require_place);
    require_elements(copy.numel, {"copy", index}, param.numel, param.numel);
    item.tensors.copy = copy.data;
    item.tensors.copy_type = copy.dtype;
  }
  require_apart(item, index, roles);
  return item;
}

// Refuses memory that is written for two parameters; of gradients only if they are zeroed. Each item has passed
// checked_item.
template <class Items, std::size_t kStates>
void require_disjoint(const Items& items, const std::array<const char*, kStates>& state_roles, bool zero_grads) {
  WrittenRanges written(items.size() * (2 + kStates));
  for (std::size_t i = 0; i < items.size(); ++i) {
    for_each_tensor(items[i], state_roles, [&](const void* data, std::int64_t bytes, const char* role, bool is_grad) {
      if (zero_grads || !is_grad) {
        written.add(data, bytes, role, i);
      }
    });
  }
  written.require_disjoint();
}

// The addresses of step counters, each the only element of a tensor, as in torch's optimizers; see dense_memory() for
// `require_place`.
template <class RequirePlace>
std::vector<float*> step_counters(const Tensors& steps, const RequirePlace& require_place) {
  std::vector<float*> counters(steps.size());
  check_each(steps.size(), [&](std::size_t i) {
    const Argument argument{"step", i};
    if (steps[i].numel() != 1 || steps[i].scalar_type() != ScalarType::Float) {
      refuse(argument.text() + " is not a tensor of one float32.",
             "Pass, for example, torch.zeros((), device=param.device).");
    }
    const DenseMemory memory = dense_memory(steps[i], argument, sizeof(float), require_place);
    counters[i] = reinterpret_cast<float*>(memory.data);
  });
  WrittenRanges written(counters.size());
  for (std::size_t i = 0; i < counters.size(); ++i) {
    written.add(counters[i], sizeof(float), "step", i);
  }
  written.require_disjoint();
  return counters;
}

// The next step of each counter, in host memory.
inline std::vector<double> next_steps(const std::vector<float*>& counters) {
  constexpr double kLastStep = 9007199254740992.0;  // 2^53: a double holds every whole number up to here
  std::vector<double> steps;
  steps.reserve(counters.size());
  for (std::size_t i = 0; i < counters.size(); ++i) {
    const double done = *counters[i];
    if (!(done >= 0 && done <= kLastStep && std::floor(done) == done)) {
      refuse(Argument{"step", i}.text() + " is " + std::to_string(done) + "; steps are whole numbers of at least 0.",
             "Load an intact state.");
    }
    steps.push_back(done + 1);
  }
  return steps;
}

inline void write_steps(const std::vector<float*>& counters, const std::vector<double>& steps) {
  for (std::size_t i = 0; i < counters.size(); ++i) {
    *counters[i] = static_cast<float>(steps[i]);
  }
}

}  // namespace accel
