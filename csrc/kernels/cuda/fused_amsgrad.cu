#include "kernels/cuda/fused_amsgrad.h"

#include "kernels/cuda/multi_tensor.cuh"
// The order matters.
#include "kernels/formulas/adam_inl.h"
// The order matters.
#include "kernels/formulas/amsgrad_inl.h"

namespace accel::cuda {
namespace {

struct AmsgradUpdate {
  using Formula = AmsgradFormula;
  using Options = AdamOptions;
  using Coefficients = AdamCoefficients;
  static constexpr bool kHasStep = true;

  ACCEL_HOST_DEVICE static Coefficients coefficients(const Options& options, double step) {
    return adam_coefficients(options, step);
  }
};

}  // namespace

int fused_amsgrad(const DeviceTensor* tensors, std::size_t count, const AdamOptions& options, double step,
                  const Controls& controls, std::int64_t chunk_size, void* stream) noexcept {
  return run_elementwise<AmsgradUpdate>(tensors, count, options, step, controls, chunk_size, stream);
}

}  // namespace accel::cuda
