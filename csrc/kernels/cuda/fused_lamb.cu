#include "kernels/cuda/fused_lamb.h"

#include "kernels/cuda/multi_tensor.cuh"
// The order matters.
#include "kernels/formulas/lamb.h"

// Three kernels for each table: the first updates the moments and sums the squares of parameters and directions for
// each chunk, the second makes each tensor's trust ratio of those sums, the third moves the parameters. The
// direction is computed again instead of kept: keeping it would cost a write and a read where the third kernel
// reads two moments, and memory as large as the parameters.

namespace accel::cuda {
namespace {

constexpr int kPointers = 5;  // parameter, gradient, two moments, step
constexpr int kWarps = kThreads / 32;

struct LambUpdate : Lamb {
  using Formula = LambFormula;
};
static_assert(kPointers == kPointersOf<LambUpdate>, "the table has what fill_pointers writes");

struct Squares {
  double param;
  double direction;
};

// Where the launches for one table leave what the next ones need.
struct Workspace {
  Squares* squares;  // of each chunk
  float* ratios;     // of each tensor
};

// The sum over the block, in thread 0. Always in the same order: halves of a warp onto each other, then the warps
// one after another.
ACCEL_INLINE Squares block_sum(Squares mine, Squares (&warps)[kWarps]) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    mine.param += __shfl_down_sync(0xffffffffu, mine.param, offset);
    mine.direction += __shfl_down_sync(0xffffffffu, mine.direction, offset);
  }
  __syncthreads();  // no thread still reads the last sum's
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = mine;
  }
  __syncthreads();
  Squares sum{0.0, 0.0};
  if (threadIdx.x == 0) {
    for (const Squares& warp : warps) {
      sum.param += warp.param;
      sum.direction += warp.direction;
    }
  }
  return sum;
}

// First pass over a chunk.
template <class P, class G, class S>
struct MomentsBody {
  template <int kCount>
  struct Loaded {
    Vector<P, kCount> param;
    Vector<G, kCount> grad;
    Vector<S, kCount> moments[2];
  };

  LambFormula formula;
  float grad_factor;
  const P* param;
  const G* grad;
  S* moments[2];
  Squares squares;  // of this thread's elements

  template <int kCount>
  ACCEL_INLINE int head() const {
    return same_or_none(same_or_none(head_of<kCount>(param), head_of<kCount>(grad)),
                        same_or_none(head_of<kCount>(moments[0]), head_of<kCount>(moments[1])));
  }

  template <int kCount>
  ACCEL_INLINE void load(int element, Loaded<kCount>& loaded) const {
    loaded.param.load(param + element);
    loaded.grad.load(grad + element);
    loaded.moments[0].load(moments[0] + element);
    loaded.moments[1].load(moments[1] + element);
  }

  template <int kCount>
  ACCEL_INLINE void finish(int element, Loaded<kCount>& loaded) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float moment[2] = {loaded.moments[0].get(i), loaded.moments[1].get(i)};
      formula.update_moments(grad_factor * loaded.grad.get(i), moment);
      loaded.moments[0].set(i, moment[0]);
      loaded.moments[1].set(i, moment[1]);
      const float stored[2] = {loaded.moments[0].get(i), loaded.moments[1].get(i)};
      const double value = loaded.param.get(i);
      const double direction = formula.direction(loaded.param.get(i), stored);
      squares.param = fma(value, value, squares.param);
      squares.direction = fma(direction, direction, squares.direction);
    }
    loaded.moments[0].store(moments[0] + element);
    loaded.moments[1].store(moments[1] + element);
  }
};

// Second pass over a chunk.
template <class P, class S>
struct ApplyBody {
  template <int kCount>
  struct Loaded {
    Vector<P, kCount> param;
    Vector<S, kCount> moments[2];
  };

  LambFormula formula;
  float minus_step;
  P* param;
  const S* moments[2];

  template <int kCount>
  ACCEL_INLINE int head() const {
    return same_or_none(head_of<kCount>(param), same_or_none(head_of<kCount>(moments[0]), head_of<kCount>(moments[1])));
  }

  template <int kCount>
  ACCEL_INLINE void load(int element, Loaded<kCount>& loaded) const {
    loaded.param.load(param + element);
    loaded.moments[0].load(moments[0] + element);
    loaded.moments[1].load(moments[1] + element);
  }

  template <int kCount>
  ACCEL_INLINE void finish(int element, Loaded<kCount>& loaded) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float moment[2] = {loaded.moments[0].get(i), loaded.moments[1].get(i)};
      const float value = loaded.param.get(i);
      loaded.param.set(i, formula.apply(minus_step, value, formula.direction(value, moment)));
    }
    loaded.param.store(param + element);
  }
};

template <class P, class G, class S>
__global__ void __launch_bounds__(kThreads)
    moments_kernel(const __grid_constant__ TensorTable<kPointers> table,
                   const __grid_constant__ Numbers<LambUpdate> numbers, const __grid_constant__ Controls controls,
                   const Workspace workspace) {
  constexpr int kCount = kVectorOf<P, G, S>;
  __shared__ LambCoefficients shared;
  __shared__ Squares warps[kWarps];
  if (is_skipped(controls)) {
    return;
  }
  const float grad_factor = gradient_factor(controls);
  CoefficientSource<LambUpdate> coefficients(numbers, controls, shared);
  for_each_chunk(table, [&](const Chunk& chunk) {
    MomentsBody<P, G, S> body{LambFormula(coefficients.of(step_of<LambUpdate>(table, chunk.tensor))),
                              grad_factor,
                              array_of<const P>(table, 0, chunk),
                              array_of<const G>(table, 1, chunk),
                              {array_of<S>(table, 2, chunk), array_of<S>(table, 3, chunk)},
                              {0.0, 0.0}};
    run_chunk<kCount>(body, chunk_parts(chunk.count, body.template head<kCount>(), kCount));
    const Squares sum = block_sum(body.squares, warps);
    if (threadIdx.x == 0) {
      workspace.squares[chunk.number] = sum;
    }
  });
}

// One block for each tensor.
__global__ void __launch_bounds__(kThreads)
    ratios_kernel(const __grid_constant__ TensorTable<kPointers> table, const __grid_constant__ Controls controls,
                  const Workspace workspace) {
  __shared__ Squares warps[kWarps];
  if (is_skipped(controls)) {
    return;
  }
  const int tensor = blockIdx.x;
  const std::uint32_t end = table.first_chunk[tensor + 1];
  Squares mine{0.0, 0.0};
#pragma unroll 4
  for (std::uint32_t chunk = table.first_chunk[tensor] + threadIdx.x; chunk < end; chunk += kThreads) {
    const Squares squares = workspace.squares[chunk];
    mine.param += squares.param;
    mine.direction += squares.direction;
  }
  const Squares sum = block_sum(mine, warps);
  if (threadIdx.x == 0) {
    workspace.ratios[tensor] = Lamb::factor(sum.param, sum.direction);
  }
}

template <class P, class S>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(const __grid_constant__ TensorTable<kPointers> table,
                 const __grid_constant__ Numbers<LambUpdate> numbers, const __grid_constant__ Controls controls,
                 const Workspace workspace) {
  constexpr int kCount = kVectorOf<P, S>;
  __shared__ LambCoefficients shared;
  if (is_skipped(controls)) {
    return;
  }
  CoefficientSource<LambUpdate> coefficients(numbers, controls, shared);
  for_each_chunk(table, [&](const Chunk& chunk) {
    const LambCoefficients& c = coefficients.of(step_of<LambUpdate>(table, chunk.tensor));
    ApplyBody<P, S> body{LambFormula(c),
                         c.minus_lr * workspace.ratios[chunk.tensor],
                         array_of<P>(table, 0, chunk),
                         {array_of<const S>(table, 2, chunk), array_of<const S>(table, 3, chunk)}};
    run_chunk<kCount>(body, chunk_parts(chunk.count, body.template head<kCount>(), kCount));
  });
}

std::int64_t chunks_of(const DeviceTensor* tensors, std::size_t count, std::int32_t chunk_elements) {
  std::int64_t chunks = 0;
  for (std::size_t i = 0; i < count; ++i) {
    chunks += ceil_divide(tensors[i].numel, chunk_elements);
  }
  return chunks;
}

}  // namespace

std::size_t lamb_workspace_bytes(const DeviceTensor* tensors, std::size_t count, std::int64_t chunk_size) noexcept {
  // The tables share it: their kernels run one after another.
  const std::int64_t chunks = chunks_of(tensors, count, fixed_chunk(chunk_size));
  return static_cast<std::size_t>(chunks) * sizeof(Squares) + TensorTable<kPointers>::kCapacity * sizeof(float);
}

int fused_lamb(const DeviceTensor* tensors, std::size_t count, const LambOptions& options, double step,
               const Controls& controls, std::int64_t chunk_size, void* workspace_memory, void* stream) noexcept {
  const Numbers<LambUpdate> numbers = host_numbers<LambUpdate>(options, step);
  static_assert(
      sizeof(TensorTable<kPointers>) + sizeof(numbers) + sizeof(controls) + sizeof(Workspace) + 16 <= kParameterBytes,
      "a launch's parameters are too many");
  const std::int32_t chunk_elements = fixed_chunk(chunk_size);
  Workspace workspace;
  workspace.squares = static_cast<Squares*>(workspace_memory);
  workspace.ratios = reinterpret_cast<float*>(workspace.squares + chunks_of(tensors, count, chunk_elements));
  return for_each_code(tensors, count, [&](int code) {
    return with_types(code, [&](auto p, auto g, auto s) -> int {
      using P = decltype(p);
      using S = decltype(s);
      constexpr auto moments = moments_kernel<P, decltype(g), S>;
      constexpr auto apply = apply_kernel<P, S>;
      int moments_resident = 0;
      int apply_resident = 0;
      if (const int error = resident_blocks<moments>(&moments_resident)) {
        return error;
      }
      if (const int error = resident_blocks<apply>(&apply_resident)) {
        return error;
      }
      return for_each_table<kPointers>(
          tensors, count, code, fill_pointers<LambUpdate>, [&](std::int64_t) { return chunk_elements; },
          [&](const TensorTable<kPointers>& table) -> int {
            const std::uint32_t chunks = table.chunks();
            if (const int error =
                    launch(moments, grid_for(chunks, moments_resident), stream, table, numbers, controls, workspace)) {
              return error;
            }
            if (const int error = launch(ratios_kernel, table.count, stream, table, controls, workspace)) {
              return error;
            }
            return launch(apply, grid_for(chunks, apply_resident), stream, table, numbers, controls, workspace);
          });
    });
  });
}

}  // namespace accel::cuda
