// What a native op keeps from call to call, behind numbers that Python holds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "bindings/tensor_checks.h"
#include "common/mutex.h"

namespace accel {

// One table for each type. Numbers count from 1 and are never used again.
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
