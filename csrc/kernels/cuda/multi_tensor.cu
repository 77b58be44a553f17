#include "kernels/cuda/multi_tensor.cuh"

namespace accel::cuda {
namespace {

constexpr int kStepsPerLaunch = static_cast<int>((kParameterBytes - kControlBytes) / sizeof(float*));

struct StepTable {
  float* steps[kStepsPerLaunch];
  int count;
};

// A kernel of its own, before the update: in the update some blocks would read a counter that others have advanced.
__global__ void __launch_bounds__(kThreads)
    advance_kernel(const __grid_constant__ StepTable table, const __grid_constant__ Controls controls) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < table.count && !is_skipped(controls)) {
    *table.steps[i] += 1.0f;
  }
}

}  // namespace

int advance_steps(float* const* steps, std::size_t count, const Controls& controls, void* stream) noexcept {
  StepTable table;
  for (std::size_t first = 0; first < count; first += kStepsPerLaunch) {
    table.count = static_cast<int>(count - first < kStepsPerLaunch ? count - first : kStepsPerLaunch);
    std::memcpy(table.steps, steps + first, table.count * sizeof(float*));
    const unsigned blocks = static_cast<unsigned>(ceil_divide(table.count, kThreads));
    if (const int error = launch(advance_kernel, blocks, stream, table, controls)) {
      return error;
    }
  }
  return 0;
}

int use_device(int device) noexcept {
  int current = -1;
  if (const cudaError_t error = cudaGetDevice(&current)) {
    return error;
  }
  return current == device ? 0 : static_cast<int>(cudaSetDevice(device));
}

const char* error_text(int error) noexcept { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace accel::cuda
