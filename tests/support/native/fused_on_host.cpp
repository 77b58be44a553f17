// The fused CUDA kernels as functions for ctypes, which run on the host through cuda_on_host/. For tests/support/cuda_on_host.py.
#include <vector>

#include "kernels/cuda/fused_lamb.h"
#include "kernels/cuda/multi_tensor.h"
#include "kernels/formulas/adam.h"
#include "kernels/formulas/lion.h"

using namespace accel;
using namespace accel::cuda;

#define FUNCTION(name, Optimizer)                                                                                      \
  extern "C" int name(const DeviceTensor* tensors, std::size_t count, const double* options, double step,              \
                      const Controls* controls, std::int64_t chunk_size) {                                             \
    return fused_update<Optimizer>(tensors, count, Optimizer::options(options), step, *controls, chunk_size, nullptr); \
  }
FUNCTION(adam, Adam)
FUNCTION(lion, Lion)

extern "C" int lamb(const DeviceTensor* tensors, std::size_t count, const double* options, double step,
                    const Controls* controls, std::int64_t chunk_size) {
  std::vector<double> workspace(lamb_workspace_bytes(tensors, count, chunk_size) / sizeof(double) + 1);
  return fused_lamb(tensors, count, Lamb::options(options), step, *controls, chunk_size, workspace.data(), nullptr);
}

extern "C" int advance(float* const* steps, std::size_t count, const Controls* controls) {
  return advance_steps(steps, count, *controls, nullptr);
}
