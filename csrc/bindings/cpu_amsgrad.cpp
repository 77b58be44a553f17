// The cpu_amsgrad op library: AMSGrad's declaration.

#include <array>

#include "bindings/host_optimizer.h"
#include "kernels/cpu/amsgrad.h"

namespace {

struct Amsgrad {
  using Coefficients = accel::AdamCoefficients;
  static constexpr std::array<const char*, 3> kStates = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static constexpr std::size_t kOptions = 7;

  static Coefficients coefficients(const double* options, double step) {
    return accel::adam_coefficients(
        {options[0], options[1], options[2], options[3], options[4], options[5] != 0, options[6] != 0}, step);
  }
  static accel::cpu::OptimizerKernel find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    const accel::cpu::OptimizerKernel kernel = accel::cpu::find_amsgrad_update(isa, types);
    if (kernel == nullptr) {
      accel::refuse("AMSGrad's states are given in bytes or with stochastic rounding; it takes plain states only.",
                    "Pass states of float32 or of the parameter's type, no scales, and stochastic=False.");
    }
    return kernel;
  }
};

}  // namespace

ACCEL_HOST_OPTIMIZER(Amsgrad)
