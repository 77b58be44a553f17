#include "kernels/cpu/isa.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace accel::cpu {
namespace {

#if defined(__x86_64__)

constexpr bool has_all(unsigned value, unsigned mask) { return (value & mask) == mask; }

// What the operating system saves on a context switch (register XCR0); a CPU that has AVX under a
// system that does not save its registers cannot use it.
unsigned saved_register_state() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Bit positions: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID.
Isa best_x86_isa() {
  constexpr unsigned kFma = 1u << 12;
  constexpr unsigned kOsxsave = 1u << 27;
  constexpr unsigned kAvx = 1u << 28;
  constexpr unsigned kF16c = 1u << 29;
  constexpr unsigned kAvx2 = 1u << 5;
  constexpr unsigned kAvx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // F, DQ, BW, VL
  constexpr unsigned kYmmState = 0x06;                                             // SSE and AVX
  constexpr unsigned kZmmState = 0xe6;                                             // and AVX-512

  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has_all(ecx, kFma | kOsxsave | kAvx | kF16c)) {
    return Isa::baseline;
  }
  const unsigned saved = saved_register_state();
  if (!has_all(saved, kYmmState) || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !has_all(ebx, kAvx2)) {
    return Isa::baseline;
  }
  return has_all(ebx, kAvx512) && has_all(saved, kZmmState) ? Isa::avx512 : Isa::avx2;
}

#endif

}  // namespace

const char* isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::neon:
      return "neon";
  }
  return "";
}

bool parse_isa(const char* name, Isa* isa) noexcept {
  for (const Isa candidate : kAllIsas) {
    if (std::strcmp(name, isa_name(candidate)) == 0) {
      *isa = candidate;
      return true;
    }
  }
  return false;
}

bool isa_supported(Isa isa) noexcept {
#if defined(__x86_64__)
  static const Isa best = best_x86_isa();
  return isa <= best;  // the x86 ones are declared in rising order
#elif defined(__aarch64__)
  return isa == Isa::baseline || isa == Isa::neon;  // NEON is part of AArch64
#else
  return isa == Isa::baseline;
#endif
}

}  // namespace accel::cpu
