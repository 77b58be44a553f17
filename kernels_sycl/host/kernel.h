// What a kernel's text begins with: SYCL's free-function kernels and the work-item's own queries, by the finest headers
// that the release has. sycl/sycl.hpp takes the kernel compiler five times as long as a kernel.
#pragma once

#include <cstdint>

#if __has_include(<sycl/ext/oneapi/free_function_kernel_properties.hpp>)
#include <sycl/ext/oneapi/free_function_kernel_properties.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#else  // before release 2026.0
#include <sycl/sycl.hpp>
#endif

// Before a kernel: ACCEL_SYCL_FREE_KERNEL void scale(float* x, float a, std::int64_t n) { ... }
// Further properties stand before it. Inline, because a compiler that compiles kernels ahead reads a text once for each
// source that starts kernels.
#define ACCEL_SYCL_FREE_KERNEL \
  SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((::sycl::ext::oneapi::experimental::nd_range_kernel<1>)) inline
