// The cpu_adagrad op library: Adagrad's declaration.

#include <array>

#include "bindings/host_optimizer.h"
#include "kernels/cpu/adagrad.h"

namespace {

struct Adagrad {
  using Coefficients = accel::AdagradCoefficients;
  static constexpr std::array<const char*, 1> kStates = {"exp_avg_sq"};
  static constexpr std::size_t kOptions = 4;

  static Coefficients coefficients(const double* options, double step) {
    return accel::adagrad_coefficients({options[0], options[1], options[2], options[3]}, step);
  }
  static accel::cpu::OptimizerKernel find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    return accel::cpu::find_adagrad_update(isa, types);
  }
};

}  // namespace

ACCEL_HOST_OPTIMIZER(Adagrad)
