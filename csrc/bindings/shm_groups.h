// The groups of the shm_comm op library, by number, and the messages of their failures.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include <pthread.h>

#include "bindings/tensor_checks.h"
#include "common/mutex.h"
#include "kernels/comm/group.h"

namespace accel {

// Counts forks: a child inherits its parent's groups, but is not a rank of them.
inline std::atomic<std::int64_t>& forks() {
  static std::atomic<std::int64_t> count{0};
  return count;
}
[[maybe_unused]] inline const int kForkIsWatched = pthread_atfork(nullptr, nullptr, [] { ++forks(); });

// Never destroyed: a thread may still use one when the process ends.
class ShmGroups {
 public:
  std::int64_t add(std::shared_ptr<comm::Group> group) {
    const Lock lock(mutex_);
    groups_.emplace(++last_, Entry{std::move(group), forks()});
    return last_;
  }
  std::shared_ptr<comm::Group> find(std::int64_t number) {
    const Lock lock(mutex_);
    const auto found = groups_.find(number);
    if (found == groups_.end()) {
      refuse("Group " + std::to_string(number) + " is closed.", "Make a new one with new_group().");
    }
    if (found->second.forks != forks()) {
      refuse("This process is a fork of the rank that made the group, not a rank itself.",
             "Make a group in the child, or start the ranks with spawn.");
    }
    return found->second.group;
  }
  void remove(std::int64_t number) {
    const Lock lock(mutex_);
    groups_.erase(number);
  }

 private:
  struct Entry {
    std::shared_ptr<comm::Group> group;
    std::int64_t forks;
  };
  Mutex mutex_;
  std::map<std::int64_t, Entry> groups_;
  std::int64_t last_ = 0;
};

inline ShmGroups& shm_groups() {
  static auto* const all = new ShmGroups;
  return *all;
}

inline std::string call_in_words(const comm::Group& group, int rank) {
  const comm::Call call = group.call_of(rank);
  static const char* const kinds[] = {"nothing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"};
  static const char* const elements[] = {"float32", "bfloat16", "float16", "int32"};
  static const char* const reductions[] = {"sum", "max", "min", "avg"};
  const auto kind = call.what & 0xff;
  if (kind == 6) {
    return group.text_of(rank);
  }
  std::string text = kinds[kind < 6 ? kind : 0];
  if (kind == 1 || kind == 2) {
    text += std::string(" (") + reductions[call.what >> 16 & 3] + ") of " + std::to_string(call.count) + " " +
            elements[call.what >> 8 & 3];
  } else if (kind != 5) {
    const auto* const type = torch_c::find_type(static_cast<std::int32_t>(call.what >> 8 & 0xff));
    text += " of " + std::to_string(call.count) + " bytes" + (type == nullptr ? "" : std::string(" of ") + type->name);
  }
  if (kind == 4) {
    text += " from rank " + std::to_string(call.what >> 32 & 0xffff);
  }
  if ((call.what >> 24 & 1) != 0) {
    text += " in symmetric memory " + std::to_string(call.place >> 44) + " at byte " +
            std::to_string(call.place & ((std::uint64_t{1} << 44) - 1));
  }
  return text;
}

inline std::string in_words(comm::Group& group, const comm::Failure& failure) {
  using Kind = comm::Failure::Kind;
  const std::string who = "rank " + std::to_string(failure.rank);
  char waited[64];
  std::snprintf(waited, sizeof(waited), ", after waiting %.1f s for it", static_cast<double>(failure.waited_ns) / 1e9);
  switch (failure.kind) {
    case Kind::died:
      return who + " died" + waited;
    case Kind::left:
      return failure.rank == group.rank() ? "another thread of this rank closed the group"
                                          : who + " has closed the group" + waited;
    case Kind::gave_up:
      return who + " gave up" +
             (failure.culprit == failure.rank ? std::string(" when it was interrupted")
                                              : " because of rank " + std::to_string(failure.culprit)) +
             waited;
    case Kind::late:
      return who + " is alive but did not take part" + waited;
    case Kind::interrupted:
      return "a signal ended the wait for " + who;
    case Kind::busy:
      return "the group was used inside one of its own collectives";
    case Kind::mismatch:
      return "rank " + std::to_string(group.rank()) + " called " + call_in_words(group, group.rank()) + ", " + who +
             " called " + call_in_words(group, failure.rank);
    case Kind::none:
      break;
  }
  return "";
}

}  // namespace accel
