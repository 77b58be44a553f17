// How a binding starts kernels: on which stream, with which arguments. Knows neither SYCL nor torch, so that a
// binding is compiled in a second; host/launch.cpp is the one file of an op that includes SYCL's headers.
//
// A kernel is a free function, templates included, in a text of its own (OpBuilder.kernel_sources()). The
// toolchain sycl-rtc embeds that text in the binary, and SYCL's kernel compiler compiles it in the process;
// icpx and IPEX compile it ahead, with the binding (ACCEL_SYCL_AHEAD).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

// Each op's library has a runtime of its own, whatever a foreign library exports.
#pragma GCC visibility push(hidden)

namespace accel::xpu {

// Features that a device must have for a kernel; combine them by addition.
enum Needs : unsigned { kNothing = 0, kFp16 = 1, kFp64 = 2, kSubGroups16 = 4 };

// Sets *kernel, a std::optional<sycl::kernel>, to the one that was compiled ahead, given a const sycl::context*.
using AheadKernel = void (*)(const void* context, void* kernel);

// One kernel, by the name that C++ would call it by at the end of its text: "accel::xpu::scale<float>". Defined
// at namespace scope, by ACCEL_SYCL_KERNEL; compiled at its first launch on a device. The build tries the first.
class Kernel {
 public:
  Kernel(const char* name, unsigned needs, AheadKernel ahead = nullptr);
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const char* name() const { return name_; }
  unsigned needs() const { return needs_; }
  AheadKernel ahead() const { return ahead_; }
  std::size_t index() const { return index_; }

 private:
  const char* name_;
  unsigned needs_;
  AheadKernel ahead_;
  std::size_t index_;  // among the kernels of this library
};

// What a kernel's launch may depend on.
struct Device {
  std::string name;
  bool is_cpu;
  bool has_fp16;
  bool has_fp64;
  bool has_sub_groups_16;
  std::uint32_t compute_units;
  std::size_t max_group_size;
};

struct Range {
  std::size_t groups;
  std::size_t group_size;
};

// One argument: the address of its value, which is read during the call alone.
struct KernelArgument {
  const void* value;
  std::size_t bytes;
  bool is_pointer;
};

class StreamState;

// An in-order queue: kernels run in the order of their launches.
class Stream {
 public:
  explicit Stream(StreamState* state) : state_(state) {}
  Stream(Stream&& other) noexcept : state_(other.state_) { other.state_ = nullptr; }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Stream& operator=(Stream&&) = delete;
  // Waits like finish() while an exception is thrown, so that no kernel outlives the memory it writes.
  ~Stream();

  const Device& device() const;

  // On the host's device: returns when all kernels have ended. On a queue of torch's: does nothing, as what follows
  // there runs after them.
  void finish();

  void enqueue(const Kernel& kernel, Range range, const KernelArgument* arguments, std::size_t count);

 private:
  StreamState* state_;
};

// A stream of the SYCL CPU device, on host memory. Not shared: threads run side by side.
// Throws std::runtime_error: there is no such device, or this process was forked from one that used SYCL.
Stream host_stream();

// A stream over a borrowed sycl::queue, which must be in-order.
Stream queue_stream(void* sycl_queue);

// Starts `kernel` with arguments that must be of exactly its parameters' types (std::int64_t is no int): pointers,
// numbers, trivially copyable structs. Throws std::runtime_error if the kernel cannot be compiled (with the compiler's
// message), the device lacks a feature that it needs, or the number of arguments is wrong.
template <class... Arguments>
void launch(Stream& stream, const Kernel& kernel, Range range, const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Arguments> && ...), "a kernel's arguments are copied as bytes");
  const KernelArgument list[] = {{&arguments, sizeof(Arguments), std::is_pointer_v<Arguments>}...};
  stream.enqueue(kernel, range, list, sizeof...(Arguments));
}

}  // namespace accel::xpu

#pragma GCC visibility pop

#if defined(ACCEL_SYCL_AHEAD)
#include "host/ahead.h"
#define ACCEL_SYCL_AHEAD_OF(...) &::accel::xpu::ahead_kernel<&__VA_ARGS__>
#else
#define ACCEL_SYCL_AHEAD_OF(...) nullptr
#endif

// A kernel by its name: ACCEL_SYCL_KERNEL(accel::xpu::scale<float>).
#define ACCEL_SYCL_KERNEL(...) ACCEL_SYCL_KERNEL_NEEDING(::accel::xpu::kNothing, __VA_ARGS__)
// A kernel that computes in double or half itself: ACCEL_SYCL_KERNEL_NEEDING(accel::xpu::kFp64, my::sum<double>).
#define ACCEL_SYCL_KERNEL_NEEDING(needs, ...) \
  ::accel::xpu::Kernel(#__VA_ARGS__, (needs), ACCEL_SYCL_AHEAD_OF(__VA_ARGS__))
