// Objects that Python refers to by numbers, which count from 1 and are never reused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "common/mutex.h"

namespace accel {

template <class T>
class Registry {
 public:
  std::int64_t add(std::shared_ptr<T> object) {
    const Lock lock(mutex_);
    objects_.emplace(++last_, std::move(object));
    return last_;
  }
  // Null for an unknown number, like take().
  std::shared_ptr<T> find(std::int64_t number) {
    const Lock lock(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second;
  }
  // Forgets an object and returns it, so that the lock is not held when it is destroyed.
  std::shared_ptr<T> take(std::int64_t number) {
    const Lock lock(mutex_);
    const auto node = objects_.extract(number);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

  // The registry of a binding. Never destroyed: a thread may still use one when the process ends, and tensors must not
  // be released after torch's own statics are destroyed.
  static Registry& instance() {
    static auto* const one = new Registry;
    return *one;
  }

 private:
  Mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<T>> objects_;
  std::int64_t last_ = 0;
};

}  // namespace accel
