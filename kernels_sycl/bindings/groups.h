// How work is cut into groups of work-items.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "bindings/tensor_checks.h"
#include "host/launch.h"
#include "kernels/sub_group_size.h"

// A kernel that is an ACCEL_REDUCING_KERNEL (kernels/sub_groups.h).
#define ACCEL_SUB_GROUP_KERNEL(...) ACCEL_SYCL_KERNEL_NEEDING(::accel::xpu::kSubGroups16, __VA_ARGS__)

namespace accel::xpu {

// Work-items of a group, whole sub-groups. A CPU runs a vector of items through the whole kernel before the next, so
// that a larger group would go through memory in strides; a GPU hides the wait for memory behind a group's other
// sub-groups.
inline std::size_t group_items(const Device& device) {
  return device.is_cpu ? kSubGroup : std::min<std::size_t>(256, device.max_group_size);
}

// The number of groups of `items` each for the work, limited to one launch: SYCL numbers all work-items of a launch
// with an int.
inline std::size_t group_count(std::int64_t work, std::size_t items) {
  if (work > std::numeric_limits<std::int32_t>::max() / static_cast<std::int64_t>(items)) {
    refuse("The tensor needs " + std::to_string(work) + " groups of " + std::to_string(items) +
               " work-items; a launch has fewer.",
           "Pass it in parts.");
  }
  return static_cast<std::size_t>(work);
}

}  // namespace accel::xpu
