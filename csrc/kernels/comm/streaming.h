// Decides whether data for other ranks is written past the caches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace accel::comm {

// Measures both ways. If the ranks share a cache, writing past it costs a third; if they do not, a line from the
// other's cache takes several times as long as one from memory. The better way also depends on the size, and cores of
// virtual machines move, so each class of sizes (those with the same highest bit) is measured repeatedly.
//
// All ranks make the same calls and use the same times, those of the slowest rank, so they always choose the same way.
// If one wrote past the caches and another did not, each would wait for the slow part of the other's way.
class Streaming {
 public:
  static constexpr std::int64_t kRoundCalls = 4;   // a round of trials: two calls past the caches, two through them
  static constexpr std::int64_t kRounds = 3;       // rounds whose results decide; also the number of initial rounds
  static constexpr std::int64_t kRoundEvery = 64;  // calls

  // Whether the next call, over `bytes` (at least 1), writes past the caches.
  bool begin(std::int64_t bytes) {
    Class& sizes = classes_[class_of(bytes)];
    const std::int64_t turn = sizes.calls++;
    const std::int64_t in_round = turn % kRoundEvery;
    const bool is_trial = turn < kRounds * kRoundCalls || in_round < kRoundCalls;
    const bool streams = is_trial ? in_round % kRoundCalls < kRoundCalls / 2 : is_better(bytes);
    // The first of two calls does not count: it finds the slots as the other way left them.
    call_ = {is_trial && in_round % 2 == 1 ? &sizes : nullptr, bytes, streams};
    return streams;
  }

  // Pass the call's duration on this rank, without the wait for ranks that arrived late.
  void end(std::int64_t taken_ns) {
    trial_ = call_;
    taken_ns_ = taken_ns < kMostNs ? static_cast<std::uint32_t>(taken_ns) : kMostNs;
  }

  // The time that the next call passes to the other ranks; and the time of the slowest rank.
  std::uint32_t taken_ns() const { return taken_ns_; }
  void learn(std::uint32_t taken_ns) {
    if (trial_.sizes == nullptr) {
      return;
    }
    Class& sizes = *trial_.sizes;
    const float per_byte = static_cast<float>(taken_ns) / static_cast<float>(trial_.bytes);
    sizes.taken[trial_.streams][static_cast<std::size_t>(sizes.round % kRounds)] = per_byte;
    if (!trial_.streams && ++sizes.round >= kRounds) {
      // The fastest of each way: the others were disturbed by chance.
      sizes.choice = fastest(sizes.taken[true]) < fastest(sizes.taken[false]) ? Choice::stream : Choice::plain;
      latest_ = sizes.choice;
    }
    trial_.sizes = nullptr;
  }

  // Sets a result for calls over `bytes` that was measured elsewhere.
  void decide(std::int64_t bytes, bool streams) {
    latest_ = classes_[class_of(bytes)].choice = streams ? Choice::stream : Choice::plain;
  }

  // The result of the trials of this class of sizes; of other classes before its first trial.
  bool is_better(std::int64_t bytes) const {
    const Choice choice = classes_[class_of(bytes)].choice;
    return (choice == Choice::none ? latest_ : choice) != Choice::plain;
  }

 private:
  static constexpr std::uint32_t kMostNs = 0xffffffff;
  enum class Choice : std::uint8_t { none, stream, plain };
  using Taken = std::array<float, kRounds>;  // ns per byte

  struct Class {
    std::int64_t calls = 0;
    std::int64_t round = 0;
    std::array<Taken, 2> taken{};  // index 1: past the caches
    Choice choice = Choice::none;
  };
  struct Trial {
    Class* sizes = nullptr;  // null if its time does not count
    std::int64_t bytes = 0;
    bool streams = false;
  };

  static float fastest(const Taken& taken) {
    float least = taken[0];
    for (const float each : taken) {
      least = each < least ? each : least;
    }
    return least;
  }
  static std::size_t class_of(std::int64_t bytes) {
    return static_cast<std::size_t>(63 - __builtin_clzll(static_cast<unsigned long long>(bytes | 1)));
  }

  std::array<Class, 64> classes_{};
  Trial call_;   // begun last
  Trial trial_;  // ended last; its result is not recorded yet
  std::uint32_t taken_ns_ = 0;
  Choice latest_ = Choice::none;
};

// The same decision within one call of many steps: the first steps try both ways, the rest use the better one. During
// so long a call earlier results can become outdated.
class StreamingInSteps {
 public:
  static constexpr std::int64_t kTrial = 4;  // steps each way
  static constexpr std::int64_t kLeast = 3 * kTrial;

  bool streams() const { return streams_; }

  // Call at the beginning of step `step`, after all ranks have met. Returns true once, when the better way is known.
  bool begin(std::int64_t step, std::int64_t now_ns) {
    if (step == 1) {
      began_ns_ = now_ns;
    } else if (step == 1 + kTrial) {
      streamed_ns_ = now_ns - began_ns_;
      streams_ = false;
    } else if (step == 2 + kTrial) {
      began_ns_ = now_ns;  // data written past the caches is read from here on
    } else if (step == 2 + 2 * kTrial) {
      streams_ = streamed_ns_ < now_ns - began_ns_;
      return true;
    }
    return false;
  }

 private:
  std::int64_t began_ns_ = 0;
  std::int64_t streamed_ns_ = 0;
  bool streams_ = true;
};

}  // namespace accel::comm
