// Choosing among the builds of one kernel, one for each instruction set. Not for callers.
//
// A kernel's *_inl.h defines a function in namespace accel::cpu::<isa>; ACCEL_DECLARE_TARGETS declares
// it for all of them, ACCEL_CALL_TARGET calls the one for `isa`, which must be supported here.
#pragma once

#include "kernels/cpu/isa.h"

#define ACCEL_DECLARE_TARGETS(declaration)         \
  namespace accel::cpu::baseline { declaration; }  \
  namespace accel::cpu::avx2 { declaration; }      \
  namespace accel::cpu::avx512 { declaration; }    \
  namespace accel::cpu::neon { declaration; }

#if defined(__x86_64__)
#define ACCEL_CALL_TARGET(isa, call)                     \
  ((isa) == ::accel::cpu::Isa::avx512 ? avx512::call     \
   : (isa) == ::accel::cpu::Isa::avx2 ? avx2::call       \
                                      : baseline::call)
#elif defined(__aarch64__)
#define ACCEL_CALL_TARGET(isa, call) ((isa) == ::accel::cpu::Isa::neon ? neon::call : baseline::call)
#else
#define ACCEL_CALL_TARGET(isa, call) baseline::call
#endif
