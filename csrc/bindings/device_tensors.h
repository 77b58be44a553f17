// The tensors of an update on a device, checked before anything is written, without reading them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings/host_tensors.h"
#include "kernels/multi_tensor/table.h"

namespace accel {

// Type and number of a device.
struct DevicePlace {
  std::int32_t type;
  std::int32_t index;

  static DevicePlace of(const Tensor& tensor) {
    return {tensor.device_type(), tensor.is_cpu() ? 0 : tensor.device_index()};
  }
  bool has(const Tensor& tensor) const {
    const DevicePlace other = of(tensor);
    return other.type == type && other.index == index;
  }
};

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

inline auto require_device(const DevicePlace& place) {
  return [place](const Tensor& tensor, const Argument& argument) {
    if (!place.has(tensor)) {
      refuse(argument.text() + " is not on the device of the first tensor.",
             "Pass the tensors of each device in a separate call.");
    }
  };
}

// The address of a dense tensor's elements, of `element_bytes` each, on the device `place`.
inline void* device_memory(const Tensor& tensor, const Argument& argument, const DevicePlace& place,
                           std::int64_t element_bytes) {
  return dense_memory(tensor, argument, element_bytes, require_device(place)).data;
}

inline DeviceArray device_array(const Tensor& tensor, const Argument& argument, const DevicePlace& place) {
  const HostTensor checked = float_memory(tensor, argument, require_device(place));
  return {checked.data, checked.numel, checked.dtype};
}

inline DType state_type(const multi_tensor::StoredTypes& types) {
  return types.states_as_param ? types.param : DType::float32;
}

// Refuses a parameter whose tensors share memory; `state_roles` name the states in messages.
template <std::size_t kStates>
void require_apart(const multi_tensor::DeviceTensor& tensor, std::size_t index,
                   const std::array<const char*, kStates>& state_roles) {
  static_assert(kStates <= multi_tensor::kMaxStates, "DeviceTensor has no room for them");
  OwnRanges<2 + kStates> ranges(index);
  ranges.add(tensor.param, tensor.numel * size_bytes(tensor.types.param), "param");
  ranges.add(tensor.grad, tensor.numel * size_bytes(tensor.types.grad), "grad");
  for (std::size_t k = 0; k < kStates; ++k) {
    ranges.add(tensor.states[k], tensor.numel * size_bytes(state_type(tensor.types)), state_roles[k]);
  }
}

// Sets the gradient of a tensor that has its parameter.
inline void take_grad(const TensorLists& lists, std::size_t index, const DevicePlace& place,
                      multi_tensor::DeviceTensor& tensor) {
  const DeviceArray grad = device_array(lists.grads[index], {"grad", index}, place);
  require_elements(grad.numel, {"grad", index}, tensor.numel, tensor.numel);
  tensor.grad = grad.data;
  tensor.types.grad = grad.dtype;
}

// Checks one parameter's tensors.
template <std::size_t kStates>
multi_tensor::DeviceTensor checked_device_tensor(const TensorLists& lists, std::size_t index,
                                                 const std::array<const char*, kStates>& state_roles,
                                                 const DevicePlace& place) {
  const DeviceArray param = device_array(lists.params[index], {"param", index}, place);
  multi_tensor::DeviceTensor tensor{};
  tensor.param = param.data;
  tensor.numel = param.numel;
  tensor.types.param = param.dtype;
  take_grad(lists, index, place, tensor);
  DType first_type = DType::float32;
  for (std::size_t k = 0; k < kStates; ++k) {
    const Argument argument{state_roles[k], index};
    const DeviceArray state = device_array(lists.states[k * lists.params.size() + index], argument, place);
    require_elements(state.numel, argument, param.numel, param.numel);
    if (state.dtype != DType::float32 && state.dtype != param.dtype) {
      refuse_state_type(argument, state.dtype, param.dtype);
    }
    if (k > 0 && state.dtype != first_type) {
      refuse_mixed_states(state_roles[0], argument);
    }
    first_type = state.dtype;
    tensor.states[k] = state.data;
  }
  tensor.types.states_as_param = first_type != DType::float32;
  require_apart(tensor, index, state_roles);
  return tensor;
}

// The arguments of an update on a device.
struct DeviceLists {
  std::vector<multi_tensor::DeviceTensor> tensors;
  std::vector<float*> steps;  // counters, each once
};

template <std::size_t kStates>
DeviceLists checked_device_lists(const TensorLists& lists, const Tensors& steps,
                                 const std::array<const char*, kStates>& state_roles) {
  lists.require_length(lists.grads, 1, "grad");
  lists.require_length(lists.states, kStates, "state");
  DeviceLists checked;
  if (lists.params.empty()) {
    return checked;
  }
  const DevicePlace place = DevicePlace::of(lists.params[0]);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Tensor& step = steps[i];
    if (step.numel() != 1 || step.scalar_type() != ScalarType::Float || !place.has(step)) {
      refuse(Argument{"step", i}.text() + " is not a tensor of one float32 on the device of its parameter.",
             "Pass, for example, torch.zeros((), device=param.device).");
    }
    constexpr std::int64_t kBytes = sizeof(float);
    checked.steps.push_back(static_cast<float*>(memory_of(step, {"step", i}, kBytes, kBytes)));
  }
  checked.tensors.reserve(lists.params.size());
  WrittenRanges written(lists.params.size() * (1 + kStates) + steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    written.add(checked.steps[i], sizeof(float), "step", i);
  }
  for (std::size_t i = 0; i < lists.params.size(); ++i) {
    checked.tensors.push_back(checked_device_tensor(lists, i, state_roles, place));
    multi_tensor::DeviceTensor& tensor = checked.tensors.back();
    if (!steps.empty()) {
      tensor.step = checked.steps[steps.size() == 1 ? 0 : i];
    }
    written.add(tensor.param, tensor.numel * size_bytes(tensor.types.param), "param", i);
    for (std::size_t k = 0; k < kStates; ++k) {
      written.add(tensor.states[k], tensor.numel * size_bytes(state_type(tensor.types)), state_roles[k], i);
    }
  }
  written.require_disjoint();
  return checked;
}

// Checks the gradients of a list whose other tensors have not changed.
template <std::size_t kStates>
void check_device_grads(const TensorLists& lists, const std::array<const char*, kStates>& state_roles,
                        DeviceLists& checked) {
  lists.require_length(lists.grads, 1, "grad");
  const DevicePlace place = DevicePlace::of(lists.params[0]);
  check_each(checked.tensors.size(), [&](std::size_t i) {
    take_grad(lists, i, place, checked.tensors[i]);
    require_apart(checked.tensors[i], i, state_roles);
  });
}

}  // namespace accel
