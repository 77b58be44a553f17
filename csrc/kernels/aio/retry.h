// How what fails for a moment (EAGAIN and the like) is tried again.
#pragma once

#include <algorithm>
#include <chrono>

namespace accel::aio {

constexpr int kMostAttempts = 1000;  // without progress: about five seconds, with the pauses below

inline std::chrono::microseconds pause_before(int attempt) {
  return std::chrono::microseconds(std::min(10 * attempt, 10'000));
}

}  // namespace accel::aio
