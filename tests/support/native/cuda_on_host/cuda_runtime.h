// A stand-in for CUDA's runtime that runs kernels on the host, for tests: one block after another, the threads of a
// block by turns. It has what csrc/kernels/cuda/ uses and nothing else. What it cannot show:
// speed, memory that hosts and devices order differently, alignment faults, the driver.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#define CUDART_VERSION 13000
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // blocks run one at a time

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned count) : x(count) {}
};

inline dim3 threadIdx, blockIdx, gridDim;

namespace cuda_on_host {

constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kStackBytes = 256 * 1024;

// The threads of a block take turns: each runs until it meets a barrier or ends, then the next. That is right for
// kernels whose threads all meet the same barriers, as these do, whether of the block or of a warp.
inline ucontext_t scheduler;
inline ucontext_t threads[kMostThreads];
inline bool has_ended[kMostThreads];
inline std::unique_ptr<char[]> stacks[kMostThreads];
inline double exchanged[kMostThreads];
inline std::function<void()> body;
inline int launches = 0;

inline void run_thread() {
  body();
  has_ended[threadIdx.x] = true;
}

inline void meet_barrier() { swapcontext(&threads[threadIdx.x], &scheduler); }

__attribute__((noinline)) inline void make_thread(unsigned i) {
  if (stacks[i] == nullptr) {
    stacks[i] = std::make_unique<char[]>(kStackBytes);
  }
  getcontext(&threads[i]);
  threads[i].uc_stack.ss_sp = stacks[i].get();
  threads[i].uc_stack.ss_size = kStackBytes;
  threads[i].uc_link = &scheduler;
  makecontext(&threads[i], run_thread, 0);
  has_ended[i] = false;
}

inline void run_block(unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    make_thread(i);
  }
  for (unsigned ended = 0; ended < count;) {
    ended = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (!has_ended[i]) {
        threadIdx.x = i;
        swapcontext(&scheduler, &threads[i]);
      }
      ended += has_ended[i];
    }
    if (ended != 0 && ended != count) {
      std::abort();  // some threads wait at a barrier that others never meet
    }
  }
}

}  // namespace cuda_on_host

inline void __syncthreads() { cuda_on_host::meet_barrier(); }
inline double __shfl_down_sync(unsigned, double value, int offset) {
  const unsigned thread = threadIdx.x;
  cuda_on_host::exchanged[thread] = value;
  cuda_on_host::meet_barrier();
  const double other = cuda_on_host::exchanged[thread % 32 + offset < 32 ? thread + offset : thread];
  cuda_on_host::meet_barrier();
  return other;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

using cudaError_t = int;
using cudaStream_t = void*;
enum { cudaSuccess, cudaErrorInvalidValue, cudaErrorInsufficientDriver };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

inline cudaError_t cudaGetDevice(int* device) { return *device = 0; }
inline cudaError_t cudaSetDevice(int) { return 0; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, 0; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 3, 0; }
inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int, std::size_t) {
  return *blocks = 1, 0;
}

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
};

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  const std::tuple<std::decay_t<Parameters>...> copies(arguments...);  // a launch copies its parameters
  cuda_on_host::body = [&] { std::apply(kernel, copies); };
  ++cuda_on_host::launches;
  gridDim.x = config->gridDim.x;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    cuda_on_host::run_block(config->blockDim.x);
  }
  return 0;
}
