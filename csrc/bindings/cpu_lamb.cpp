// The cpu_lamb op library: LAMB's declaration.

#include <array>

#include "bindings/host_optimizer.h"
#include "kernels/cpu/lamb.h"

namespace {

struct Lamb {
  using Coefficients = accel::LambCoefficients;
  static constexpr std::array<const char*, 2> kStates = {"exp_avg", "exp_avg_sq"};
  static constexpr std::size_t kOptions = 6;

  static Coefficients coefficients(const double* options, double step) {
    return accel::lamb_coefficients(
        {options[0], options[1], options[2], options[3], options[4], options[5] != 0}, step);
  }
  static accel::cpu::TwoPassKernels find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    const accel::cpu::TwoPassKernels kernels = accel::cpu::find_lamb_update(isa, types);
    if (kernels.measure == nullptr) {
      accel::refuse("LAMB's states are given in bytes or with stochastic rounding; it takes plain states only.",
                    "Pass states of float32 or of the parameter's type, no scales, and stochastic=False.");
    }
    return kernels;
  }
  static float factor(const accel::cpu::SquareSums& sums) {
    return accel::lamb_trust_ratio(sums.param, sums.direction);
  }
};

}  // namespace

ACCEL_HOST_OPTIMIZER(Lamb)
