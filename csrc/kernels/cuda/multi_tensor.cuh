// The device code that all fused optimizers share: conversion of memory to floats and back, the loop over chunks and
// vectors, the decisions made on the device, and the launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstring>

#include "kernels/cuda/multi_tensor.h"

#define ACCEL_INLINE __device__ __forceinline__
#define ACCEL_FORMULA_NAMESPACE accel::cuda

namespace accel::cuda {

// What formulas/*.h ask of a platform: a thread's vector is one float. Compile with -fmad=false: as on the
// CPU, products are fused where a formula says so and nowhere else.
using F32 = float;
ACCEL_INLINE float broadcast(float value) { return value; }
ACCEL_INLINE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
ACCEL_INLINE float square_root(float value) { return sqrtf(value); }
ACCEL_INLINE float sign_of(float value) { return value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : value; }

ACCEL_INLINE float to_float(float value) { return value; }
ACCEL_INLINE float to_float(BFloat16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
ACCEL_INLINE float to_float(Float16 value) { return __half2float(__ushort_as_half(value.bits)); }

// To nearest even; NaN stays NaN, what is too large becomes infinity.
ACCEL_INLINE void from_float(float value, float& to) { to = value; }
ACCEL_INLINE void from_float(float value, BFloat16& to) { to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
ACCEL_INLINE void from_float(float value, Float16& to) { to.bits = __half_as_ushort(__float2half_rn(value)); }

// kCount elements that are moved by one instruction, 16 bytes at most.
template <class T, int kCount>
struct Vector {
  static_assert(sizeof(T) * kCount <= 16, "no instruction moves more");
  struct alignas(sizeof(T) * kCount) Elements {
    T at[kCount];
  };
  Elements elements;

  ACCEL_INLINE void load(const T* from) { elements = *reinterpret_cast<const Elements*>(from); }
  ACCEL_INLINE void store(T* to) const { *reinterpret_cast<Elements*>(to) = elements; }
  ACCEL_INLINE float get(int i) const { return to_float(elements.at[i]); }
  ACCEL_INLINE void set(int i, float value) { from_float(value, elements.at[i]); }
};

template <class... Ts>
constexpr int kVectorOf = vector_elements((... || (sizeof(Ts) > 2)) ? 4 : 2);

// Where vectors may begin in an array, and in two: -1 where they differ; see ChunkParts.
template <int kCount, class T>
ACCEL_INLINE int head_of(const T* array) {
  return elements_to_alignment(reinterpret_cast<std::uintptr_t>(array), sizeof(T), kCount);
}
ACCEL_INLINE int same_or_none(int a, int b) { return a == b ? a : -1; }

// Work on one chunk, each element once. A Body has, for vectors of kCount elements,
//   template <int kCount> struct Loaded;
//   template <int kCount> void load(int element, Loaded<kCount>&) const;
//   template <int kCount> void finish(int element, Loaded<kCount>&);
// All of a thread's loads of one round are issued before the first of them is used.
template <int kCount, int kInFlight, class Body, class Place>
ACCEL_INLINE void run_vectors(Body& body, int count, const Place& place) {
  for (int first = threadIdx.x; first < count; first += kInFlight * kThreads) {
    typename Body::template Loaded<kCount> loaded[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * kThreads < count) {
        body.template load<kCount>(place(first + k * kThreads), loaded[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * kThreads < count) {
        body.template finish<kCount>(place(first + k * kThreads), loaded[k]);
      }
    }
  }
}

template <int kCount, class Body>
ACCEL_INLINE void run_chunk(Body& body, const ChunkParts& parts) {
  run_vectors<kCount, kElementsInFlight / kCount>(body, (parts.tail - parts.head) / kCount,
                                                  [&](int i) { return parts.head + i * kCount; });
  // Up to 14 elements at the ends; all of them where the arrays are not aligned alike, hence more in flight.
  run_vectors<1, 4>(body, single_elements(parts), [&](int i) { return single_element(parts, i); });
}

// Which elements of which tensor.
struct Chunk {
  int tensor;
  std::uint32_t number;  // in the table
  std::int64_t begin;
  int count;
};

// A block takes every gridDim.x-th chunk. There are as many blocks as the device runs at once, so what is read or
// computed once per block is so once per launch.
template <int kPointers, class Visit>
ACCEL_INLINE void for_each_chunk(const TensorTable<kPointers>& table, const Visit& visit) {
  const std::uint32_t chunks = table.chunks();
  int tensor = 0;
  for (std::uint32_t number = blockIdx.x; number < chunks; number += gridDim.x) {
    tensor = find_tensor(table.first_chunk, table.count, number, tensor);
    const std::int64_t begin = static_cast<std::int64_t>(number - table.first_chunk[tensor]) * table.chunk_elements;
    const std::int64_t rest = table.numel[tensor] - begin;
    visit(Chunk{tensor, number, begin, rest < table.chunk_elements ? static_cast<int>(rest) : table.chunk_elements});
  }
}

// True when nothing may be changed; the same in all threads.
ACCEL_INLINE bool is_skipped(const Controls& controls) {
  return (controls.noop_flag != nullptr && *controls.noop_flag != 0) ||
         (controls.found_inf != nullptr && *controls.found_inf != 0.0f);
}

ACCEL_INLINE float gradient_factor(const Controls& controls) {
  const float factor = controls.grad_scale != nullptr ? 1.0f / *controls.grad_scale : 1.0f;
  return controls.maximize ? -factor : factor;
}

// An optimizer's numbers: `coefficients` made on the host, for when neither lr nor step is on the device. Update has
//   using Options, Coefficients;
//   static constexpr bool kHasStep;
//   static Coefficients coefficients(const Options&, double step);  // on host and device
template <class Update>
struct Numbers {
  typename Update::Options options;
  double step;
  typename Update::Coefficients coefficients;
};

template <class Update>
Numbers<Update> host_numbers(const typename Update::Options& options, double step) {
  return {options, step, Update::coefficients(options, step)};
}

// The coefficients of one chunk after another. On the device one thread makes them, for its whole block and for as
// long as the step stays the same: two powers in double cost as much as some hundred elements.
template <class Update>
class CoefficientSource {
 public:
  using Coefficients = typename Update::Coefficients;

  __device__ CoefficientSource(const Numbers<Update>& numbers, const Controls& controls, Coefficients& shared)
      : numbers_(numbers),
        lr_(controls.lr),
        shared_(shared),
        current_(numbers.coefficients),
        made_(false),
        step_(0.0f) {}

  // To be called by all threads of the block; `step` is the same for all.
  ACCEL_INLINE const Coefficients& of(const float* step) {
    if (step == nullptr && lr_ == nullptr) {
      return current_;
    }
    const float now = step == nullptr ? static_cast<float>(numbers_.step) : *step;
    if (made_ && now == step_) {
      return current_;
    }
    __syncthreads();  // no thread still reads the last ones
    if (threadIdx.x == 0) {
      typename Update::Options options = numbers_.options;
      if (lr_ != nullptr) {
        options.lr = static_cast<double>(*lr_);
      }
      shared_ = Update::coefficients(options, static_cast<double>(now));
    }
    __syncthreads();
    current_ = shared_;
    made_ = true;
    step_ = now;
    return current_;
  }

 private:
  const Numbers<Update>& numbers_;
  const float* lr_;
  Coefficients& shared_;
  Coefficients current_;
  bool made_;
  float step_;
};

// The element-wise optimizers ------------------------------------------------------------------------------------

// One chunk of a formula with kStates states in memory of type S.
template <class Formula, class P, class G, class S>
struct ElementwiseBody {
  static constexpr int kStates = Formula::kStates;

  template <int kCount>
  struct Loaded {
    Vector<P, kCount> param;
    Vector<G, kCount> grad;
    Vector<S, kCount> states[kStates];
  };

  Formula formula;
  float grad_factor;
  P* param;
  const G* grad;
  S* states[kStates];

  template <int kCount>
  ACCEL_INLINE int head() const {
    int head = same_or_none(head_of<kCount>(param), head_of<kCount>(grad));
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      head = same_or_none(head, head_of<kCount>(states[k]));
    }
    return head;
  }

  template <int kCount>
  ACCEL_INLINE void load(int element, Loaded<kCount>& loaded) const {
    loaded.param.load(param + element);
    loaded.grad.load(grad + element);
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      loaded.states[k].load(states[k] + element);
    }
  }

  template <int kCount>
  ACCEL_INLINE void finish(int element, Loaded<kCount>& loaded) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float value = loaded.param.get(i);
      float state[kStates];
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        state[k] = loaded.states[k].get(i);
      }
      formula(value, grad_factor * loaded.grad.get(i), state);
      loaded.param.set(i, value);
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        loaded.states[k].set(i, state[k]);
      }
    }
    loaded.param.store(param + element);
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      loaded.states[k].store(states[k] + element);
    }
  }
};

// Addresses in a table: parameter, gradient, states, and the step's where there is one.
template <class Update>
constexpr int kPointersOf = 2 + Update::Formula::kStates + (Update::kHasStep ? 1 : 0);

template <class Update>
void fill_pointers(void* (*pointers)[TensorTable<kPointersOf<Update>>::kCapacity], int i, const DeviceTensor& tensor) {
  constexpr int kStates = Update::Formula::kStates;
  pointers[0][i] = tensor.param;
  pointers[1][i] = const_cast<void*>(tensor.grad);
  for (int k = 0; k < kStates; ++k) {
    pointers[2 + k][i] = tensor.states[k];
  }
  if constexpr (Update::kHasStep) {
    pointers[2 + kStates][i] = tensor.step;
  }
}

// `tensor` counts in the table, `begin` in elements.
template <class T, int kPointers>
ACCEL_INLINE T* array_of(const TensorTable<kPointers>& table, int role, const Chunk& chunk) {
  return static_cast<T*>(table.pointers[role][chunk.tensor]) + chunk.begin;
}

template <class Update, int kPointers>
ACCEL_INLINE const float* step_of(const TensorTable<kPointers>& table, int tensor) {
  if constexpr (Update::kHasStep) {
    return static_cast<const float*>(table.pointers[kPointers - 1][tensor]);
  } else {
    return nullptr;
  }
}

template <class Update, int kPointers, class P, class G, class S>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(const __grid_constant__ TensorTable<kPointers> table,
                       const __grid_constant__ Numbers<Update> numbers, const __grid_constant__ Controls controls) {
  using Body = ElementwiseBody<typename Update::Formula, P, G, S>;
  constexpr int kCount = kVectorOf<P, G, S>;
  __shared__ typename Update::Coefficients shared;
  if (is_skipped(controls)) {
    return;
  }
  const float grad_factor = gradient_factor(controls);
  CoefficientSource<Update> coefficients(numbers, controls, shared);
  for_each_chunk(table, [&](const Chunk& chunk) {
    Body body{typename Update::Formula(coefficients.of(step_of<Update>(table, chunk.tensor))),
              grad_factor,
              array_of<P>(table, 0, chunk),
              array_of<const G>(table, 1, chunk),
              {}};
#pragma unroll
    for (int k = 0; k < Body::kStates; ++k) {
      body.states[k] = array_of<S>(table, 2 + k, chunk);
    }
    run_chunk<kCount>(body, chunk_parts(chunk.count, body.template head<kCount>(), kCount));
  });
}

// Host side ------------------------------------------------------------------------------------------------------

// How many blocks of a kernel the current device runs at once, asked once for each device.
template <auto kernel>
int resident_blocks(int* blocks) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) {
    return error;
  }
  const bool is_kept = device < kDevices;
  *blocks = is_kept ? known[device].load(std::memory_order_relaxed) : 0;
  if (*blocks != 0) {
    return 0;
  }
  int driver = 0;
  if (const cudaError_t error = cudaDriverGetVersion(&driver)) {
    return error;
  }
  if (kParameterBytes > 4096 && driver < 12010) {  // its own error would be less clear
    return cudaErrorInsufficientDriver;
  }
  int processors = 0;
  int per_processor = 0;
  if (const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) {
    return error;
  }
  if (const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, kThreads, 0)) {
    return error;
  }
  *blocks = processors * (per_processor > 0 ? per_processor : 1);
  if (is_kept) {
    known[device].store(*blocks, std::memory_order_relaxed);
  }
  return 0;
}

// By a function of the runtime, not by <<<>>>: so a test can run this code on a host, with a stand-in for CUDA's
// headers (tests/support/native/cuda_on_host).
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), unsigned blocks, void* stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

inline unsigned grid_for(std::uint32_t chunks, int resident) {
  return chunks < static_cast<std::uint32_t>(resident) ? chunks : static_cast<unsigned>(resident);
}

// Calls run(P{}, G{}, S{}) with the types of `code`; run returns 0 or an error.
template <class P, class G, class Run>
int with_state_type(bool as_param, const Run& run) {
  if constexpr (sizeof(P) == sizeof(float)) {
    return run(P{}, G{}, float{});
  } else {
    return as_param ? run(P{}, G{}, P{}) : run(P{}, G{}, float{});
  }
}

template <class P, class Run>
int with_grad_type(int grad_and_state, const Run& run) {
  const bool as_param = grad_and_state % 2 != 0;
  switch (static_cast<DType>(grad_and_state / 2)) {
    case DType::float32:
      return with_state_type<P, float>(as_param, run);
    case DType::bfloat16:
      return with_state_type<P, BFloat16>(as_param, run);
    case DType::float16:
      return with_state_type<P, Float16>(as_param, run);
  }
  return cudaErrorInvalidValue;
}

template <class Run>
int with_types(int code, const Run& run) {
  switch (static_cast<DType>(code / 6)) {
    case DType::float32:
      return with_grad_type<float>(code % 6, run);
    case DType::bfloat16:
      return with_grad_type<BFloat16>(code % 6, run);
    case DType::float16:
      return with_grad_type<Float16>(code % 6, run);
  }
  return cudaErrorInvalidValue;
}

// Calls run(code) for each combination of types that occurs.
template <class Run>
int for_each_code(const DeviceTensor* tensors, std::size_t count, const Run& run) {
  bool occurs[kTypeCodes] = {};
  for (std::size_t i = 0; i < count; ++i) {
    occurs[type_code(tensors[i].types)] = tensors[i].numel != 0 || occurs[type_code(tensors[i].types)];
  }
  for (int code = 0; code < kTypeCodes; ++code) {
    if (occurs[code]) {
      if (const int error = run(code)) {
        return error;
      }
    }
  }
  return 0;
}

template <class Update>
int run_elementwise(const DeviceTensor* tensors, std::size_t count, const typename Update::Options& options,
                    double step, const Controls& controls, std::int64_t chunk_size, void* stream) {
  constexpr int kPointers = kPointersOf<Update>;
  const Numbers<Update> numbers = host_numbers<Update>(options, step);
  static_assert(sizeof(TensorTable<kPointers>) + sizeof(numbers) + sizeof(controls) + 16 <= kParameterBytes,
                "a launch's parameters are too many");
  return for_each_code(tensors, count, [&](int code) {
    return with_types(code, [&](auto p, auto g, auto s) -> int {
      constexpr auto kernel = elementwise_kernel<Update, kPointers, decltype(p), decltype(g), decltype(s)>;
      int resident = 0;
      if (const int error = resident_blocks<kernel>(&resident)) {
        return error;
      }
      return for_each_table<kPointers>(
          tensors, count, code, fill_pointers<Update>,
          [&](std::int64_t total) { return balanced_chunk(total, resident, chunk_size); },
          [&](const TensorTable<kPointers>& table) {
            return launch(kernel, grid_for(table.chunks(), resident), stream, table, numbers, controls);
          });
    });
  });
}

}  // namespace accel::cuda

// At namespace accel::cuda of a .cu: the update by `Optimizer` and its formula.
#define ACCEL_CUDA_ELEMENTWISE(Optimizer)                                                                     \
  namespace {                                                                                                 \
  struct Optimizer##Update : Optimizer {                                                                      \
    using Formula = Optimizer##Formula;                                                                       \
  };                                                                                                          \
  }                                                                                                           \
  template <class Declared>                                                                                   \
  int fused_update(const DeviceTensor* tensors, std::size_t count, const typename Declared::Options& options, \
                   double step, const Controls& controls, std::int64_t chunk_size, void* stream) noexcept {   \
    return run_elementwise<Optimizer##Update>(tensors, count, options, step, controls, chunk_size, stream);   \
  }                                                                                                           \
  template int fused_update<Optimizer>(const DeviceTensor*, std::size_t, const Optimizer::Options&, double,   \
                                       const Controls&, std::int64_t, void*) noexcept;
