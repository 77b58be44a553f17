// Includes the file that ACCEL_KERNEL names once for each instruction set of this architecture, between simd_begin.h
// and simd_end.h. A kernel is one .cpp that names itself:
//
//   #if !defined(ACCEL_TARGET_NAMESPACE)
//   ... all other headers ...
//   #define ACCEL_KERNEL "kernels/cpu/this_file.cpp"
//   #include "kernels/cpu/each_isa.h"
//   ... what callers see, by ACCEL_CALL_TARGET(isa, function(arguments)) ...
//   #else
//   namespace accel::cpu::ACCEL_TARGET_NAMESPACE { namespace { ... function ... } }
//   #endif
#include "kernels/cpu/isa.h"

// The function of namespace accel::cpu::<isa>; `isa` must be supported here.
#if defined(__x86_64__)
#define ACCEL_CALL_TARGET(isa, call) \
  ((isa) == ::accel::cpu::Isa::avx512 ? avx512::call : (isa) == ::accel::cpu::Isa::avx2 ? avx2::call : baseline::call)
#elif defined(__aarch64__)
#define ACCEL_CALL_TARGET(isa, call) ((isa) == ::accel::cpu::Isa::neon ? neon::call : baseline::call)
#else
#define ACCEL_CALL_TARGET(isa, call) baseline::call
#endif

#define ACCEL_TARGET_BASELINE
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"

#if defined(__x86_64__)
#define ACCEL_TARGET_AVX2
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"

#define ACCEL_TARGET_AVX512
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#elif defined(__aarch64__)
#define ACCEL_TARGET_NEON
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include ACCEL_KERNEL
#include "kernels/cpu/simd_end.h"
#endif

#undef ACCEL_KERNEL
