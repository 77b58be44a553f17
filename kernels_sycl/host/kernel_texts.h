// The kernel texts of one op, as the build embeds them for the toolchain sycl-rtc.
#pragma once

#include <cstddef>

#pragma GCC visibility push(hidden)

namespace accel::xpu {

struct KernelText {
  const char* name;  // below kTextRoot, the same on every machine: "kernels_sycl/kernels/scale.sycl.hpp"
  const char* text;
};

struct KernelTexts {
  const KernelText* files;  // the kernels' own texts, then the headers of the project that they include
  std::size_t file_count;
  std::size_t own_count;
  const char* const* options;  // of the kernel compiler
  std::size_t option_count;
};

// A directory that no file system has: the compiler reads nothing there but these texts.
inline constexpr char kTextRoot[] = "/accel_ops_kernels/";

// Defined by the source that the build generates.
const KernelTexts& kernel_texts();

}  // namespace accel::xpu

#pragma GCC visibility pop
