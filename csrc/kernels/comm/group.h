// One rank's view of a group that shares memory, and its checks that the other ranks are alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "kernels/comm/collectives.h"

namespace accel::comm {

// Returns whether a signal handler of the language runtime interrupts this thread; null without a runtime.
using IsInterrupted = bool (*)();

struct GroupSettings {
  int rank;
  Patience patience;
  Tuning tuning;
  cpu::Isa isa;
  IsInterrupted is_interrupted;
};

// A rank that has locked its segment's first byte (fcntl(2), F_SETLK) is alive: the kernel releases the lock when the
// process ends, however it ends, and a child made by fork() does not have it.
class Group : private Surroundings {
 public:
  // `descriptors`: the segments of all ranks, by rank; the group owns them. `is_here`: which ranks are threads of this
  // process, whose locks it cannot see. On failure `error` is an errno, and the group must not be used.
  Group(const GroupSettings& settings, std::vector<int> descriptors, std::vector<bool> is_here, int& error);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return settings_.rank; }
  int size() const { return static_cast<int>(descriptors_.size()); }

  // Runs `collective(collectives)`. Returns why it failed; after any failure but a mismatch the group is broken, and
  // later calls return the same failure at once.
  template <class Collective>
  Failure run(const Collective& collective) {
    const Lock lock(mutex_);
    if (!is_ready()) {
      return last_failure_;
    }
    is_running_ = true;
    const bool is_done = collective(collectives_);
    is_running_ = false;
    if (!is_done) {
      note_failure();
      return last_failure_;
    }
    return {};
  }

  Failure last_failure();
  void set_timeout(std::int64_t timeout_ns) { phases_.set_timeout(timeout_ns); }
  // The call of a rank, after a mismatch.
  Call call_of(int rank) const { return phases_.call_of(rank); }
  std::string text_of(int rank) const { return collectives_.text_of(rank); }

  // Announces that this rank leaves. Does not wait; another thread's wait ends at its next check.
  void leave();

  // Maps a segment of each rank, by rank; `id` is the same on all ranks. Returns null and sets `error` on failure.
  std::shared_ptr<const Symmetric> add_symmetric(std::uint64_t id, const std::vector<int>& descriptors,
                                                 std::int64_t bytes, int& error);
  void remove_symmetric(const void* base);

 private:
  bool is_alive(int rank) override;
  bool is_interrupted() override {
    return has_left_ || (settings_.is_interrupted != nullptr && settings_.is_interrupted());
  }
  bool is_ready();
  void note_failure();
  static std::vector<char*> bytes_of(const std::vector<Mapping>& mappings);
  static std::vector<Mapping> mapped(const std::vector<int>& descriptors, std::int64_t bytes, int& error);

  const GroupSettings settings_;
  const std::vector<int> descriptors_;
  const std::vector<bool> is_here_;
  std::vector<Mapping> mappings_;
  Mutex mutex_{Mutex::Kind::recursive};  // a signal handler may run during a wait, and call anything
  Phases phases_;
  Collectives collectives_;
  Failure last_failure_;
  bool is_broken_ = false;
  bool is_running_ = false;
  std::atomic<bool> has_left_{false};
  Mutex removals_mutex_;
  std::vector<const void*> removals_;  // symmetric memory that was freed, perhaps during a collective
  std::atomic<bool> has_removals_{false};
};

}  // namespace accel::comm
