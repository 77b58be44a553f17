// Copies between a rank's memory and slots that other ranks read.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace accel::comm {

constexpr std::int64_t kLine = 64;  // slices begin at cache lines, so that no line has two writers

inline void copy(void* target, const void* source, std::int64_t bytes) {
  if (bytes > 0 && target != source) {
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
}

// Copies past the caches (non-temporal stores); `target` is aligned to a cache line. Another rank reads it next: a line
// from a distant cache takes several times as long as from memory, and the writer would first have to fetch it back.
// fence_streams() orders these stores. With `is_plain` it is an ordinary copy.
inline void stream(void* target, const void* source, std::int64_t bytes, bool is_plain = false) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  if (is_plain) {
    copy(target, source, bytes);
    return;
  }
  auto* to = static_cast<__m128i*>(target);
  auto* from = static_cast<const __m128i*>(source);
  for (; bytes >= kLine; bytes -= kLine, to += 4, from += 4) {
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  copy(to, from, bytes);
#else
  static_cast<void>(is_plain);
  copy(target, source, bytes);
#endif
}

inline void fence_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Prefetches the lines of a slot that will be written soon from the caches of its readers.
inline void fetch_for_writing(char* begin, std::int64_t bytes) {
#if defined(__x86_64__)
  for (std::int64_t at = 0; at < bytes; at += kLine) {
    __asm__ volatile("prefetchw %0" : : "m"(begin[at]));
  }
#else
  for (std::int64_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(begin + at, 1);
  }
#endif
}
constexpr std::int64_t kMostFetched = 8 << 10;  // more prefetches would wait for each other

}  // namespace accel::comm
