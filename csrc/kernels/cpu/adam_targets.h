// What each adam_<isa>.cpp defines; adam.cpp chooses among them. Not for callers.
#pragma once

#include "kernels/cpu/adam.h"

#define ACCEL_DECLARE_ADAM(target)                                          \
  namespace accel::cpu::target {                                            \
  AdamKernel adam_update(DType param, DType grad, DType moment) noexcept;   \
  AdamKernel adam_rollback() noexcept;                                      \
  }

ACCEL_DECLARE_ADAM(baseline)
ACCEL_DECLARE_ADAM(avx2)
ACCEL_DECLARE_ADAM(avx512)
ACCEL_DECLARE_ADAM(neon)

#undef ACCEL_DECLARE_ADAM
