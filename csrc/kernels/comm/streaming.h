// Whether what other ranks read next is written past the caches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace accel::comm {

// Found out by trying. Where the ranks share a cache, writing past it costs a third; where they do not, a line comes from
// the other's cache several times as slowly as from memory. It depends on the size, too, and cores of virtual machines
// move, so each class of sizes (those with the same highest bit) is tried again and again.
//
// All ranks make the same calls and learn the same times, those of the slowest: so they always write the same way. Where
// one writes past the caches and another does not, each waits in turn for what the other way is slow at.
class Streaming {
 public:
  static constexpr std::int64_t kRoundCalls = 4;   // a round of trials: two calls past the caches, two through them
  static constexpr std::int64_t kRounds = 3;       // that a choice rests on, and that begin
  static constexpr std::int64_t kRoundEvery = 64;  // calls

  // Whether to, in a call over `bytes`, at least 1.
  bool begin(std::int64_t bytes) {
    Class& sizes = classes_[class_of(bytes)];
    const std::int64_t turn = sizes.calls++;
    const std::int64_t in_round = turn % kRoundEvery;
    const bool is_trial = turn < kRounds * kRoundCalls || in_round < kRoundCalls;
    const bool streams = is_trial ? in_round % kRoundCalls < kRoundCalls / 2 : is_better(bytes);
    // The first of two finds the slots as the other way has left them.
    call_ = {is_trial && in_round % 2 == 1 ? &sizes : nullptr, bytes, streams};
    return streams;
  }

  // How long the call took this rank, without what it waited for ranks that were late for it.
  void end(std::int64_t taken_ns) {
    trial_ = call_;
    taken_ns_ = taken_ns < kMostNs ? static_cast<std::uint32_t>(taken_ns) : kMostNs;
  }

  // What the next call passes to the others; and what the slowest of all has passed.
  std::uint32_t taken_ns() const { return taken_ns_; }
  void learn(std::uint32_t taken_ns) {
    if (trial_.sizes == nullptr) {
      return;
    }
    Class& sizes = *trial_.sizes;
    const float per_byte = static_cast<float>(taken_ns) / static_cast<float>(trial_.bytes);
    sizes.taken[trial_.streams][static_cast<std::size_t>(sizes.round % kRounds)] = per_byte;
    if (!trial_.streams && ++sizes.round >= kRounds) {
      // The fastest of each: all others were disturbed, by how much is chance.
      sizes.choice = fastest(sizes.taken[true]) < fastest(sizes.taken[false]) ? Choice::stream : Choice::plain;
      latest_ = sizes.choice;
    }
    trial_.sizes = nullptr;
  }

  // What was found otherwise of calls over `bytes`.
  void decide(std::int64_t bytes, bool streams) {
    latest_ = classes_[class_of(bytes)].choice = streams ? Choice::stream : Choice::plain;
  }

  // The result of the trials of such sizes, or of other ones while there are none.
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
    std::array<Taken, 2> taken{};  // by whether past the caches
    Choice choice = Choice::none;
  };
  struct Trial {
    Class* sizes = nullptr;  // null: its time does not count
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
  Trial call_;   // that began last
  Trial trial_;  // that ended last, and of which all is not learned yet
  std::uint32_t taken_ns_ = 0;
  Choice latest_ = Choice::none;
};

// The same within one call of many steps: the first ones are done both ways, the rest in the better. So long a call can
// outlast what was true when it began, or when the one before it did.
class StreamingInSteps {
 public:
  static constexpr std::int64_t kTrial = 4;  // steps each way
  static constexpr std::int64_t kLeast = 3 * kTrial;

  bool streams() const { return streams_; }

  // Step `step` begins, and all ranks have met. True once, when the better way is known.
  bool begin(std::int64_t step, std::int64_t now_ns) {
    if (step == 1) {
      began_ns_ = now_ns;
    } else if (step == 1 + kTrial) {
      streamed_ns_ = now_ns - began_ns_;
      streams_ = false;
    } else if (step == 2 + kTrial) {
      began_ns_ = now_ns;  // what was written past the caches is read
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
