// The fused_lamb op library: LAMB's declaration.

#include <array>

#include "bindings/fused_optimizer.h"
#include "kernels/cpu/lamb.h"

#if defined(ACCEL_WITH_CUDA)
#include "kernels/cuda/fused_lamb.h"
#endif

namespace {

struct FusedLamb {
  using Coefficients = accel::LambCoefficients;
  static constexpr std::array<const char*, 2> kStates = {"exp_avg", "exp_avg_sq"};
  static constexpr std::size_t kOptions = 6;
  static constexpr bool kHasStep = true;

  static accel::LambOptions named(const double* options) {
    return {options[0], options[1], options[2], options[3], options[4], options[5] != 0};
  }
  static Coefficients coefficients(const double* options, double step) {
    return accel::lamb_coefficients(named(options), step);
  }
  static accel::cpu::TwoPassKernels find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    return accel::cpu::find_lamb_update(isa, types);
  }
  static float factor(const accel::cpu::SquareSums& sums) {
    return accel::lamb_trust_ratio(sums.param, sums.direction);
  }
#if defined(ACCEL_WITH_CUDA)
  static int launch(const accel::cuda::DeviceTensor* tensors, std::size_t count, const accel::FusedArguments& arguments,
                    const accel::cuda::Controls& controls, std::int32_t device, void* stream) {
    // From torch's allocator, on the current stream: while a graph is captured, from the graph's own pool. It goes
    // back when this returns, and is used again only by what is queued behind the kernels.
    const std::size_t bytes = accel::cuda::lamb_workspace_bytes(tensors, count, arguments.chunk_size);
    const accel::Tensor workspace = accel::empty_cuda_bytes(static_cast<std::int64_t>(bytes), device);
    return accel::cuda::fused_lamb(tensors, count, named(arguments.options.data()), static_cast<double>(arguments.step),
                                   controls, arguments.chunk_size, workspace.data_ptr(), stream);
  }
#endif
};

}  // namespace

ACCEL_FUSED_OPTIMIZER(FusedLamb)
