// Work by sub-groups, and reductions over them. Their bindings name them by ACCEL_SUB_GROUP_KERNEL.
#pragma once

#include <sycl/ext/oneapi/kernel_properties/properties.hpp>
#include <sycl/functional.hpp>
#include <sycl/group_algorithm.hpp>

#include "kernels/platform.h"
#include "kernels/sub_group_size.h"

// Before a kernel that reduces.
#define ACCEL_REDUCING_KERNEL                                                                                   \
  SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<::accel::xpu::kSubGroup>)) \
  ACCEL_SYCL_FREE_KERNEL

namespace accel::xpu {

// Where this work-item is in its sub-group: item and items count there.
ACCEL_INLINE Place sub_group_place() {
  const auto sub_group = sycl::ext::oneapi::this_work_item::get_sub_group();
  Place result = place();
  result.item = sub_group.get_local_linear_id();
  result.items = kSubGroup;
  return result;
}

// This sub-group's number among all of the launch. Groups are whole sub-groups.
ACCEL_INLINE std::int64_t sub_group_number() {
  const auto sub_group = sycl::ext::oneapi::this_work_item::get_sub_group();
  return static_cast<std::int64_t>(place().group) * sub_group.get_group_linear_range() +
         sub_group.get_group_linear_id();
}

ACCEL_INLINE std::uint32_t largest_of_sub_group(std::uint32_t value) {
  const auto sub_group = sycl::ext::oneapi::this_work_item::get_sub_group();
  return sycl::reduce_over_group(sub_group, value, sycl::maximum<std::uint32_t>());
}

// The sum over the whole group; all of its items must call it.
ACCEL_INLINE float sum_of_group(float value) {
  return sycl::reduce_over_group(sycl::ext::oneapi::this_work_item::get_work_group<1>(), value, sycl::plus<float>());
}

}  // namespace accel::xpu
