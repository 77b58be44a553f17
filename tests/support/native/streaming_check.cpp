// The choice that shm_comm makes by trying, on machines made up here. Run by test_shm_comm_alone.py.

#include <cstdint>
#include <cstdio>

#include "kernels/comm/streaming.h"

using accel::comm::Streaming;
using accel::comm::StreamingInSteps;

namespace {

int failures = 0;
void require(bool holds, const char* what) {
  if (!holds) {
    std::printf("not so: %s\n", what);
    ++failures;
  }
}

// ns that a byte takes past the caches, and through them.
struct Machine {
  double stream;
  double plain;
};
constexpr Machine kNear{0.13, 0.1}, kFar{0.17, 0.46};
constexpr std::int64_t kAdapted = 3 * Streaming::kRoundEvery + Streaming::kRoundCalls;

// Of `calls` calls, how many were past the caches. Every `disturbed`-th one takes ten times as long.
std::int64_t streamed(Streaming& streaming, const Machine& machine, std::int64_t bytes, std::int64_t calls,
                      std::int64_t disturbed = 1'000'000) {
  std::int64_t streamed = 0;
  for (std::int64_t i = 1; i <= calls; ++i) {
    const bool streams = streaming.begin(bytes);
    streamed += streams;
    const double taken_ns = static_cast<double>(bytes) * (streams ? machine.stream : machine.plain);
    streaming.learn(streaming.taken_ns());  // of the call before
    streaming.end(static_cast<std::int64_t>(i % disturbed == 0 ? taken_ns * 10 : taken_ns));
  }
  streaming.learn(streaming.taken_ns());
  return streamed;
}

}  // namespace

int main() {
  constexpr std::int64_t kMiB = 1 << 20;
  const std::int64_t begin = Streaming::kRounds * Streaming::kRoundCalls;
  Streaming streaming;
  require(streaming.is_better(kMiB), "past the caches, while nothing is known");
  require(streamed(streaming, kNear, kMiB, begin) == begin / 2, "half of the first calls are past the caches");
  require(!streaming.is_better(kMiB), "through a cache that is shared");
  require(!streaming.is_better(64 * kMiB), "what is known of one size holds for sizes of which nothing is");
  streamed(streaming, kFar, 64 * kMiB, begin);
  require(streaming.is_better(64 * kMiB) && !streaming.is_better(kMiB), "each class of sizes has its own choice");
  require(streamed(streaming, kNear, kMiB, 640) == 640 / Streaming::kRoundEvery * Streaming::kRoundCalls / 2,
          "later one call in 32 is the other way");
  streamed(streaming, kFar, kMiB, kAdapted);
  require(streaming.is_better(kMiB), "the cores have moved apart");
  streamed(streaming, kNear, kMiB, kAdapted);
  require(!streaming.is_better(kMiB), "and together again");
  for (std::int64_t disturbed = 2; disturbed <= 13; ++disturbed) {
    if (disturbed == 4) {
      continue;  // one of the two ways, always
    }
    Streaming near, far;
    streamed(near, kNear, kMiB, 1000, disturbed);
    streamed(far, kFar, kMiB, 1000, disturbed);
    require(!near.is_better(kMiB) && far.is_better(kMiB), "what disturbs some calls does not decide");
  }
  for (const Machine& machine : {kNear, kFar}) {
    StreamingInSteps in_steps;
    double now_ns = 0;
    int found = 0;
    for (std::int64_t step = 0; step < StreamingInSteps::kLeast; ++step) {
      found += in_steps.begin(step, static_cast<std::int64_t>(now_ns));
      now_ns += static_cast<double>(kMiB) * (in_steps.streams() ? machine.stream : machine.plain);
    }
    require(found == 1 && in_steps.streams() == (machine.stream < machine.plain), "the better way for the later steps");
  }
  std::printf("chosen well\n");
  return failures == 0 ? 0 : 1;
}
