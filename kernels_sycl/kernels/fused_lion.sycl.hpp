// Lion over many tensors in one kernel; the formula is formulas/lion.h's.
#pragma once

#include "kernels/multi_tensor.h"
// The order matters.
#include "kernels/formulas/lion.h"

namespace accel::xpu {

struct LionUpdate {
  using Formula = LionFormula;

  ACCEL_INLINE static LionCoefficients coefficients(const LionNumbers& numbers, const Controls& controls,
                                                    const float*) {
    LionCoefficients result = numbers.coefficients;
    if (controls.lr != nullptr) {
      set_lion_lr(result, *controls.lr, numbers.weight_decay);
    }
    return result;
  }
};

template <class P, class G, class S>
ACCEL_SYCL_FREE_KERNEL void fused_lion(TensorTable<3> table, LionNumbers numbers, Controls controls) {
  update_chunk<LionUpdate, P, G, S>(table, numbers, controls);
}

}  // namespace accel::xpu
