// The cpu_sgd op library: the declaration of SGD with momentum.

#include <array>

#include "bindings/host_optimizer.h"
#include "kernels/cpu/sgd.h"

namespace {

struct Sgd {
  using Coefficients = accel::SgdCoefficients;
  static constexpr std::array<const char*, 1> kStates = {"momentum_buffer"};
  static constexpr std::size_t kOptions = 5;

  static Coefficients coefficients(const double* options, double step) {
    return accel::sgd_coefficients({options[0], options[1], options[2], options[3], options[4] != 0}, step);
  }
  static accel::cpu::OptimizerKernel find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    return accel::cpu::find_sgd_update(isa, types);
  }
};

}  // namespace

ACCEL_HOST_OPTIMIZER(Sgd)
