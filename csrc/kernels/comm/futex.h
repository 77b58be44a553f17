// Waiting on a word that several processes map: futex(2), a clock and a pause for spinning.
#pragma once

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace accel::comm {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

// Sleeps while `word` equals `seen`, at most `timeout_ns`. Returns 0 when woken, else an errno: EAGAIN (the word
// differs already), ETIMEDOUT or EINTR (a signal).
inline int futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::int64_t timeout_ns) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000);
  return syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0) == 0 ? 0 : errno;
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace accel::comm
