// Kernels that icpx compiled with the binding. Never run on hardware by this project.
#pragma once

#include <optional>

#include <sycl/sycl.hpp>

namespace accel::xpu {

template <auto* Function>
void ahead_kernel(const void* context, void* kernel) {
  namespace exp = ::sycl::ext::oneapi::experimental;
  const auto& in = *static_cast<const ::sycl::context*>(context);
  *static_cast<std::optional<::sycl::kernel>*>(kernel) =
      exp::get_kernel_bundle<Function, ::sycl::bundle_state::executable>(in).template ext_oneapi_get_kernel<Function>();
}

}  // namespace accel::xpu
