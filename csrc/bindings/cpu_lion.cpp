// The cpu_lion op library: Lion's declaration.

#include <array>

#include "bindings/host_optimizer.h"
#include "kernels/cpu/lion.h"

namespace {

struct Lion {
  using Coefficients = accel::LionCoefficients;
  static constexpr std::array<const char*, 1> kStates = {"exp_avg"};
  static constexpr std::size_t kOptions = 4;

  static Coefficients coefficients(const double* options, double /*step*/) {
    return accel::lion_coefficients({options[0], options[1], options[2], options[3]});
  }
  static accel::cpu::OptimizerKernel find(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
    return accel::cpu::find_lion_update(isa, types);
  }
};

}  // namespace

ACCEL_HOST_OPTIMIZER(Lion)
