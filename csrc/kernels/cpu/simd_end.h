// Closes what simd_begin.h opened; the next instruction set may follow in the same file.
#if defined(ACCEL_TARGET_FEATURES)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef ACCEL_TARGET_FEATURES
#undef ACCEL_PRAGMA
#undef ACCEL_PUSH_TARGET
#endif
#undef ACCEL_FORMULA_NAMESPACE
#undef ACCEL_INTEGERS
#undef ACCEL_INLINE
#undef ACCEL_LAMBDA
#undef ACCEL_TARGET_NAMESPACE
#undef ACCEL_TARGET_BASELINE
#undef ACCEL_TARGET_AVX2
#undef ACCEL_TARGET_AVX512
#undef ACCEL_TARGET_NEON
