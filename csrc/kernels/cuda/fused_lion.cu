#include "kernels/cuda/fused_lion.h"

#include "kernels/cuda/multi_tensor.cuh"
// The order matters.
#include "kernels/formulas/lion_inl.h"

namespace accel::cuda {
namespace {

struct LionUpdate {
  using Formula = LionFormula;
  using Options = LionOptions;
  using Coefficients = LionCoefficients;
  static constexpr bool kHasStep = false;

  ACCEL_HOST_DEVICE static Coefficients coefficients(const Options& options, double) {
    return lion_coefficients(options);
  }
};

}  // namespace

int fused_lion(const DeviceTensor* tensors, std::size_t count, const LionOptions& options, const Controls& controls,
               std::int64_t chunk_size, void* stream) noexcept {
  return run_elementwise<LionUpdate>(tensors, count, options, 0.0, controls, chunk_size, stream);
}

}  // namespace accel::cuda
