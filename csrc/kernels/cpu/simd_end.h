// Closes what simd_begin.h opened.
#if defined(ACCEL_TARGET_FEATURES)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
