// The tensors of an update on a device, checked before anything is written, without reading them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
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

// The arguments of an update on a device.
struct DeviceLists {
  std::vector<UpdateItem> items;
  std::vector<multi_tensor::DeviceTensor> tensors;  // of the items
  std::vector<float*> steps;                        // counters, each once
};

inline multi_tensor::DeviceTensor device_tensor(const UpdateItem& item, float* step) {
  static_assert(multi_tensor::kMaxStates == cpu::kMaxStates);
  multi_tensor::DeviceTensor tensor{};
  tensor.param = item.tensors.param;
  tensor.grad = item.tensors.grad;
  std::copy(std::begin(item.tensors.states), std::end(item.tensors.states), tensor.states);
  tensor.step = step;
  tensor.numel = item.numel;
  tensor.types = {item.types.param, item.types.grad, item.types.state == cpu::StateStorage::as_param};
  return tensor;
}

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
  checked.steps = step_counters(steps, require_device(place));
  checked.items.resize(lists.params.size());
  checked.tensors.resize(lists.params.size());
  check_each(lists.params.size(), [&](std::size_t i) {
    checked.items[i] = checked_item(lists, i, state_roles, false, require_device(place));
    checked.tensors[i] =
        device_tensor(checked.items[i], steps.empty() ? nullptr : checked.steps[steps.size() == 1 ? 0 : i]);
  });
  require_disjoint(checked.items, state_roles, false);
  return checked;
}

// Checks the gradients of a list whose other tensors have not changed.
template <std::size_t kStates>
void check_device_grads(const TensorLists& lists, const std::array<const char*, kStates>& state_roles,
                        DeviceLists& checked) {
  lists.require_length(lists.grads, 1, "grad");
  const DevicePlace place = DevicePlace::of(lists.params[0]);
  check_each(checked.items.size(), [&](std::size_t i) {
    UpdateItem& item = checked.items[i];
    take_grad(lists, i, item, require_device(place));
    require_apart(item, i, state_roles);
    checked.tensors[i] = device_tensor(item, checked.tensors[i].step);
  });
}

}  // namespace accel
