// The fused_lion op library with SYCL kernels: Lion's declaration.

#include <array>

#include "bindings/sycl_optimizer.h"

namespace {

const accel::xpu::Kernel kUpdate[] = ACCEL_SYCL_FOR_STORED_TYPES(accel::xpu::fused_lion);
const accel::xpu::Kernel kAdvance = ACCEL_SYCL_KERNEL(accel::xpu::advance_steps);

struct FusedLion {
  using Numbers = accel::xpu::LionNumbers;
  static constexpr std::array<const char*, 1> kStates = {"exp_avg"};
  static constexpr std::size_t kOptions = 4;
  static constexpr bool kHasStep = false;

  static Numbers numbers(const double* options, double) {
    return {accel::lion_coefficients({options[0], options[1], options[2], options[3]}), static_cast<float>(options[3])};
  }
  static const accel::xpu::Kernel& kernel(const accel::multi_tensor::StoredTypes& types) {
    return kUpdate[accel::xpu::kernel_index(types)];
  }
  static const accel::xpu::Kernel& advance_steps() { return kAdvance; }
};

}  // namespace

ACCEL_SYCL_FUSED_OPTIMIZER(FusedLion)
