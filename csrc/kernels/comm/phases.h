// The synchronisation of all collectives. tests/support/models/shm_comm.pml is a model of it.
//
// Each rank counts phases. A rank *publishes* a phase when the others may read the data that it wrote for the phase. It
// *meets* the others when it waits until all of them have published the phase that it published last. There are two
// buffers; a phase uses the one of its parity. These rules keep data from being read too early or overwritten too soon:
//
//   a rank writes its data for phase p        after meeting phase p - 1
//   a rank reads the others' data of phase p  after meeting phase p and before it publishes phase p + 1
//
// A rank that has met phase p - 1 therefore knows that all ranks have finished reading the data of phase p - 2, and may
// reuse that buffer for phase p. Every rank has one word that only it writes; no rank ever waits for a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <sched.h>

#include "kernels/comm/futex.h"

namespace accel::comm {

// A rank's call. It must be the same on all ranks; a difference is an error instead of garbage.
struct Call {
  enum class Kind : std::uint8_t { nothing, all_reduce, reduce_scatter, all_gather, broadcast, barrier, other };
  static constexpr std::uint16_t kNoRank = 0xffff;

  Kind kind = Kind::nothing;
  std::uint8_t element = 0, reduction = 0;  // of a reduction
  bool is_symmetric = false;                // in symmetric memory
  std::uint16_t type = 0;                   // of the caller's tensors, if they are not reduced
  std::uint16_t source = kNoRank;           // of a broadcast
  std::uint64_t count = 0;                  // elements of a reduction, else bytes
  std::uint64_t place = 0;                  // offset in symmetric memory; else 0

  bool operator==(const Call& other) const {
    return kind == other.kind && element == other.element && reduction == other.reduction &&
           is_symmetric == other.is_symmetric && type == other.type && source == other.source && count == other.count &&
           place == other.place;
  }
  bool operator!=(const Call& other) const { return !(*this == other); }
};

// The state of a rank in a group: kOpen, kLeft, or kGaveUp + the rank that it gave up on.
constexpr std::uint32_t kOpen = 0, kLeft = 1, kGaveUp = 2;

// A rank's public state: one cache line that only it writes, so that one transfer brings all of it.
struct alignas(64) Board {
  std::atomic<std::uint32_t> phase;
  std::atomic<std::uint32_t> state;
  Call calls[2];             // by the phase's parity, like the remarks
  std::uint32_t remarks[2];  // another number, which may differ from rank to rank
};
static_assert(sizeof(Board) == 64);

// The number of ranks that sleep on a rank's phase. The sleepers write it; the rank reads it when it publishes.
struct alignas(64) Bell {
  std::atomic<std::uint32_t> sleepers;
};

// The beginning of a rank's shared memory. Its initial state is all zeros.
struct Control {
  Board board;
  Bell bell;
};

// Why a wait failed.
struct Failure {
  enum class Kind : std::uint8_t { none, died, left, gave_up, late, interrupted, mismatch, busy };
  Kind kind = Kind::none;
  int rank = -1;     // the rank it waited for
  int culprit = -1;  // gave_up: the rank that it gave up on
  std::int64_t waited_ns = 0;
};

// What a waiting rank checks from time to time, away from the fast path.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual bool is_alive(int rank) = 0;
  virtual bool is_interrupted() = 0;  // the thread should return to its caller
};

struct Patience {
  std::int64_t timeout_ns;  // of one wait
  std::int64_t spin_ns;     // 0 if there are fewer cores than ranks
};

class Phases {
 public:
  // All borrowed; `segments` of all ranks, in their order, each of which begins with a Control.
  Phases(int rank, const std::vector<char*>& segments, Patience patience, Surroundings& surroundings)
      : rank_(rank), timeout_ns_(patience.timeout_ns), spin_ns_(patience.spin_ns), surroundings_(surroundings) {
    for (char* const segment : segments) {
      controls_.push_back(reinterpret_cast<Control*>(segment));
    }
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(controls_.size()); }
  const Failure& failure() const { return failure_; }
  // Any thread may call this; a wait notices it at its next check.
  void set_timeout(std::int64_t timeout_ns) { timeout_ns_ = timeout_ns; }

  // The buffer of the next phase, and the buffer of the phase published last.
  int next_parity() const { return static_cast<int>((phase_ + 1) & 1); }
  int parity() const { return static_cast<int>(phase_ & 1); }

  // Call this before the first publish() of a collective.
  void announce(const Call& call, std::uint32_t remark = 0) {
    Board& own = controls_[rank_]->board;
    own.calls[next_parity()] = call;
    own.remarks[next_parity()] = remark;
  }

  void publish() {
    Control& own = *controls_[rank_];
    // Sequentially consistent, like the sleeper's accesses in the opposite order: either the sleeper sees the new
    // phase, or this rank sees the sleeper.
    own.board.phase.exchange(++phase_, std::memory_order_seq_cst);
    if (own.bell.sleepers.load(std::memory_order_seq_cst) != 0) {
      futex_wake_all(own.board.phase);
    }
  }

  // False if a rank is missing: failure() has the reason, and nothing may be read.
  bool meet() {
    for (int other = 0; other < size(); ++other) {
      if (!has_reached(other) && !wait_for(other)) {
        return false;
      }
    }
    return true;
  }

  // meet() for the first phase of a collective: also false if another rank makes a different call.
  bool meet_and_compare() {
    if (!meet()) {
      return false;
    }
    const Call& mine = controls_[rank_]->board.calls[parity()];
    for (int other = 0; other < size(); ++other) {
      if (controls_[other]->board.calls[parity()] != mine) {
        failure_ = {Failure::Kind::mismatch, other, -1, 0};
        return false;
      }
    }
    return true;
  }

  // The largest remark; call it after meet().
  std::uint32_t largest_remark() const {
    std::uint32_t largest = 0;
    for (const Control* control : controls_) {
      const std::uint32_t remark = control->board.remarks[parity()];
      largest = remark > largest ? remark : largest;
    }
    return largest;
  }

  const Call& call_of(int rank) const { return controls_[rank]->board.calls[parity()]; }

  // Announces that this rank leaves. The first reason is kept.
  void leave(std::uint32_t state) {
    Control& own = *controls_[rank_];
    std::uint32_t before = kOpen;
    own.board.state.compare_exchange_strong(before, state);
    futex_wake_all(own.board.phase);
  }

 private:
  static constexpr std::int64_t kFirstSlice = 20'000'000, kLongestSlice = 500'000'000;  // ns
  static constexpr int kSpinsPerClockRead = 64;
  static constexpr int kYields = 4;  // if ranks share cores, another one may be ready to run

  bool has_reached(int other) const {
    const std::uint32_t theirs = controls_[other]->board.phase.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(theirs - phase_) >= 0;  // correct beyond 2^32
  }

  bool spin(int other, std::int64_t started_ns) {
    do {
      for (int spins = 0; spins < kSpinsPerClockRead; ++spins) {
        if (has_reached(other)) {
          return true;
        }
        pause_cpu();
      }
    } while (now_ns() - started_ns < spin_ns_);
    for (int yield = 0; spin_ns_ == 0 && yield < kYields; ++yield) {
      sched_yield();
      if (has_reached(other)) {
        return true;
      }
    }
    return false;
  }

  bool wait_for(int other) {
    const std::int64_t started_ns = now_ns();
    if (spin(other, started_ns)) {
      return true;
    }
    Control& theirs = *controls_[other];
    theirs.bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    bool has_come = true;
    std::int64_t slice = kFirstSlice;
    for (;;) {
      const std::uint32_t seen = theirs.board.phase.load(std::memory_order_seq_cst);
      if (static_cast<std::int32_t>(seen - phase_) >= 0) {
        break;
      }
      const std::int64_t left = timeout_ns_ - (now_ns() - started_ns);
      const int woken = futex_wait(theirs.board.phase, seen, left < slice ? (left < 1 ? 1 : left) : slice);
      if (has_reached(other)) {
        break;
      }
      slice = slice * 2 < kLongestSlice ? slice * 2 : kLongestSlice;
      if (woken != EAGAIN && !is_worth_waiting(other, started_ns)) {
        has_come = has_reached(other);  // it may have arrived in the meantime
        break;
      }
    }
    theirs.bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return has_come;
  }

  // Checks all missing ranks: the awaited one may itself wait for a dead one.
  bool is_worth_waiting(int awaited, std::int64_t started_ns) {
    const std::int64_t waited_ns = now_ns() - started_ns;
    for (int other = 0; other < size(); ++other) {
      if (other == rank_ || has_reached(other)) {
        continue;
      }
      const std::uint32_t state = controls_[other]->board.state.load(std::memory_order_seq_cst);
      const bool is_alive = state == kOpen && surroundings_.is_alive(other);
      if (is_alive || has_reached(other)) {  // checked again: it may have arrived and then ended
        continue;
      }
      if (state >= kGaveUp) {
        failure_ = {Failure::Kind::gave_up, other, static_cast<int>(state - kGaveUp), waited_ns};
      } else {
        failure_ = {state == kLeft ? Failure::Kind::left : Failure::Kind::died, other, -1, waited_ns};
      }
      return false;
    }
    if (waited_ns >= timeout_ns_) {
      failure_ = {Failure::Kind::late, awaited, -1, waited_ns};
      return false;
    }
    if (surroundings_.is_interrupted()) {
      failure_ = {Failure::Kind::interrupted, awaited, -1, waited_ns};
      return false;
    }
    return true;
  }

  const int rank_;
  std::vector<Control*> controls_;
  std::atomic<std::int64_t> timeout_ns_;
  const std::int64_t spin_ns_;
  Surroundings& surroundings_;
  std::uint32_t phase_ = 0;  // published last
  Failure failure_;
};

}  // namespace accel::comm
