// The fused_amsgrad op library: AMSGrad's declaration.

#include <array>

#include "bindings/fused_optimizer.h"
#include "kernels/cpu/amsgrad.h"

#if defined(ACCEL_WITH_CUDA)
#include "kernels/cuda/fused_amsgrad.h"
#endif

namespace {

struct FusedAmsgrad {
  using Coefficients = accel::AdamCoefficients;
  static constexpr std::array<const char*, 3> kStates = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static constexpr std::size_t kOptions = 7;
  static constexpr bool kHasStep = true;

  static accel::AdamOptions named(const double* options) {
    return {options[0], options[1], options[2], options[3], options[4], options[5] != 0, options[6] != 0};
  }
  static Coefficients coefficients(const double* options, double step) {
    return accel::adam_coefficients(named(options), step);
  }
  static accel::cpu::OptimizerKernel find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    return accel::cpu::find_amsgrad_update(isa, types);
  }
#if defined(ACCEL_WITH_CUDA)
  static int launch(const accel::cuda::DeviceTensor* tensors, std::size_t count, const accel::FusedArguments& arguments,
                    const accel::cuda::Controls& controls, std::int32_t, void* stream) {
    return accel::cuda::fused_amsgrad(tensors, count, named(arguments.options.data()),
                                      static_cast<double>(arguments.step), controls, arguments.chunk_size, stream);
  }
#endif
};

}  // namespace

ACCEL_FUSED_OPTIMIZER(FusedAmsgrad)
