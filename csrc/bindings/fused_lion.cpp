// The fused_lion op library: Lion's declaration.

#include <array>

#include "bindings/fused_optimizer.h"
#include "kernels/cpu/lion.h"

#if defined(ACCEL_WITH_CUDA)
#include "kernels/cuda/fused_lion.h"
#endif

namespace {

struct FusedLion {
  using Coefficients = accel::LionCoefficients;
  static constexpr std::array<const char*, 1> kStates = {"exp_avg"};
  static constexpr std::size_t kOptions = 4;
  static constexpr bool kHasStep = false;  // the formula has none; counters are advanced where they are given

  static accel::LionOptions named(const double* options) { return {options[0], options[1], options[2], options[3]}; }
  static Coefficients coefficients(const double* options, double) { return accel::lion_coefficients(named(options)); }
  static accel::cpu::OptimizerKernel find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    return accel::cpu::find_lion_update(isa, types);
  }
#if defined(ACCEL_WITH_CUDA)
  static int launch(const accel::cuda::DeviceTensor* tensors, std::size_t count, const accel::FusedArguments& arguments,
                    const accel::cuda::Controls& controls, std::int32_t, void* stream) {
    return accel::cuda::fused_lion(tensors, count, named(arguments.options.data()), controls, arguments.chunk_size,
                                   stream);
  }
#endif
};

}  // namespace

ACCEL_FUSED_OPTIMIZER(FusedLion)
