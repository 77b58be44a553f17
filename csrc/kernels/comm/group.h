// A group of ranks that share memory: what one rank holds of it, and how it knows that the others live.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "kernels/comm/collectives.h"

namespace accel::comm {

// How the language runtime above is asked whether a signal's handler wants this thread back; null where there is none.
using IsInterrupted = bool (*)();

struct GroupSettings {
  int rank;
  Patience patience;
  Tuning tuning;
  cpu::Isa isa;
  IsInterrupted is_interrupted;
};

// Who holds a segment's first byte locked (fcntl(2), F_SETLK) lives: the kernel takes that lock away from a process that
// ends, however it ends, and a child made by fork() does not have it.
class Group final : private Surroundings {
 public:
  // `descriptors`: the segments of all ranks, by rank; they become the group's. `is_here`: of ranks that are threads of
  // this very process, whose locks it would not see. On failure `error` is an errno, and the group is not to be used.
  Group(const GroupSettings& settings, std::vector<int> descriptors, std::vector<bool> is_here, int& error);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return settings_.rank; }
  int size() const { return static_cast<int>(descriptors_.size()); }

  // Runs `collective(collectives)`. Returns why it failed; after any failure but a mismatch the group is broken, and
  // says so again at once.
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
  // What a rank was about to do when the calls did not match.
  Call call_of(int rank) const { return phases_.call_of(rank); }
  std::string text_of(int rank) const { return collectives_.text_of(rank); }

  // Tells the others that this rank comes no more. Waits for nothing; a wait of another thread ends when it next looks
  // around.
  void leave();

  // Maps a segment of each rank, by rank; `id` is the same on all. Null with an errno in `error` where that cannot be.
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
  static std::vector<Control*> controls_of(const std::vector<Mapping>& mappings);
  static std::vector<char*> bytes_of(const std::vector<Mapping>& mappings);
  static std::vector<Mapping> mapped(const std::vector<int>& descriptors, std::int64_t bytes, int& error);

  const GroupSettings settings_;
  const std::vector<int> descriptors_;
  const std::vector<bool> is_here_;
  std::vector<Mapping> mappings_;
  Mutex mutex_{Mutex::Kind::recursive};  // a signal's handler may run in the middle of a wait, and call anything
  Phases phases_;
  Collectives collectives_;
  Failure last_failure_;
  bool is_broken_ = false;
  bool is_running_ = false;
  std::atomic<bool> has_left_{false};
  Mutex removals_mutex_;
  std::vector<const void*> removals_;  // symmetric memory that died, perhaps during a collective
  std::atomic<bool> has_removals_{false};
};

}  // namespace accel::comm
