// Instruction sets that CPU kernels are compiled for, and which of them this machine can run.
#pragma once

#include <cstdint>

namespace accel::cpu {

// baseline: what every CPU of the architecture has (SSE2 on x86-64), no fused multiply-add.
// avx2: AVX2, FMA and F16C. avx512: AVX-512 F, BW, DQ and VL on top. neon: AArch64.
enum class Isa : std::uint8_t { baseline, avx2, avx512, neon };

constexpr Isa kAllIsas[] = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::neon};

// "baseline", "avx2", "avx512" or "neon"; static storage.
const char* isa_name(Isa isa) noexcept;

// Writes the instruction set called `name` to `*isa`. Returns false for an unknown name.
bool parse_isa(const char* name, Isa* isa) noexcept;

// True when this binary has code for it and both CPU and operating system can run it.
bool isa_supported(Isa isa) noexcept;

}  // namespace accel::cpu

// Declares a function in the namespace of each instruction set of this architecture, and calls the one of `isa`, which
// must be supported here. A kernel's source defines it once for each; see each_isa.h.
#if defined(__x86_64__)
#define ACCEL_DECLARE_TARGETS(declaration) \
  namespace baseline {                     \
  declaration;                             \
  }                                        \
  namespace avx2 {                         \
  declaration;                             \
  }                                        \
  namespace avx512 {                       \
  declaration;                             \
  }
#define ACCEL_CALL_TARGET(isa, call) \
  ((isa) == ::accel::cpu::Isa::avx512 ? avx512::call : (isa) == ::accel::cpu::Isa::avx2 ? avx2::call : baseline::call)
#elif defined(__aarch64__)
#define ACCEL_DECLARE_TARGETS(declaration) \
  namespace baseline {                     \
  declaration;                             \
  }                                        \
  namespace neon {                         \
  declaration;                             \
  }
#define ACCEL_CALL_TARGET(isa, call) ((isa) == ::accel::cpu::Isa::neon ? neon::call : baseline::call)
#else
#define ACCEL_DECLARE_TARGETS(declaration) \
  namespace baseline {                     \
  declaration;                             \
  }
#define ACCEL_CALL_TARGET(isa, call) baseline::call
#endif
