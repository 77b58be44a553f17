// In place of csrc/kernels/cpu/isa.cpp: AVX-512 counts as supported wherever AVX2 is, whose instructions emulate it.
#define isa_supported isa_of_this_cpu
#include "../../../../csrc/kernels/cpu/isa.cpp"
#undef isa_supported

namespace accel::cpu {

bool isa_supported(Isa isa) noexcept { return isa_of_this_cpu(isa == Isa::avx512 ? Isa::avx2 : isa); }

}  // namespace accel::cpu
