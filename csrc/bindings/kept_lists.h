// What a native op keeps from call to call, behind numbers that Python holds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/tensor_checks.h"
#include "bindings/watched_tensors.h"
#include "common/mutex.h"
#include "torch_c/parallel.h"

namespace accel {

// A C function of the caller's, given as its address; 0 for none.
inline Beside function_at(std::int64_t address) {
  return reinterpret_cast<Beside>(static_cast<std::intptr_t>(address));
}

// One table for each type, which has a WatchedList named `watched`. Numbers count from 1 and are never used again.
template <class Kept>
class KeptLists {
 public:
  static std::int64_t add(std::shared_ptr<Kept> kept) {
    KeptLists& all = instance();
    const Lock lock(all.mutex_);
    all.lists_[++all.last_] = std::move(kept);
    return all.last_;
  }

  static std::shared_ptr<Kept> find(std::int64_t number) {
    KeptLists& all = instance();
    const Lock lock(all.mutex_);
    const auto found = all.lists_.find(number);
    if (found == all.lists_.end()) {
      refuse("There is no prepared list " + std::to_string(number) + ".", "Call prepare first.");
    }
    return found->second;
  }

  // WatchedList::look() for all of `numbers`, while the calling thread calls the function at `beside`.
  static std::vector<std::int64_t> look(std::vector<std::int64_t> numbers, std::int64_t beside) {
    std::vector<std::shared_ptr<Kept>> kept;  // whatever happens to them meanwhile
    std::vector<const WatchedList*> watched;
    for (const std::int64_t number : numbers) {
      kept.push_back(find(number));
      watched.push_back(&kept.back()->watched);
    }
    return WatchedList::look(watched, function_at(beside));
  }

  static void forget(std::int64_t number) {
    KeptLists& all = instance();
    std::shared_ptr<Kept> last;  // its tensors are let go after the lock
    const Lock lock(all.mutex_);
    const auto found = all.lists_.find(number);
    if (found != all.lists_.end()) {
      last = std::move(found->second);
      all.lists_.erase(found);
    }
  }

 private:
  // Never destroyed: tensors must not be let go after torch's own statics are gone.
  static KeptLists& instance() {
    static auto* const one = new KeptLists;
    return *one;
  }

  Mutex mutex_;
  std::unordered_map<std::int64_t, std::shared_ptr<Kept>> lists_;
  std::int64_t last_ = 0;
};

}  // namespace accel
