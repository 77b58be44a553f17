// The ops on memory in whole pages, which async_io and pin_memory share. They know addresses, not tensors: the Python
// side makes a tensor of an address, and gives the address back when the tensor's storage dies.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/memory/pages.h"
#include "torch_c/boxed.h"
#include "torch_c/library.h"

namespace accel {

class LockedPages {
 public:
  // [address, bytes, locked, errno of the lock, large pages asked for]; the address is 0 where there is no memory.
  static std::vector<std::int64_t> allocate(std::int64_t size_bytes) {
    Pages pages(static_cast<std::size_t>(size_bytes), true);
    const PageFacts facts = pages.facts();
    const auto address = reinterpret_cast<std::intptr_t>(pages.data());
    const auto mapped = static_cast<std::int64_t>(pages.size_bytes());
    if (address != 0) {
      const std::lock_guard<std::mutex> lock(mutex());
      all().emplace(address, std::move(pages));
    }
    return {address, mapped, facts.is_locked, facts.lock_error, facts.may_be_huge};
  }

  static void unlock(std::int64_t address) {
    const std::lock_guard<std::mutex> lock(mutex());
    const auto found = all().find(address);
    if (found != all().end()) {
      found->second.unlock();
    }
  }

  static void release(std::int64_t address) {
    std::unique_lock<std::mutex> lock(mutex());
    const auto node = all().extract(address);
    lock.unlock();  // to unmap some gigabytes takes its time
  }

  static void define(Library& library) {
    library.def("allocate(int size_bytes) -> int[]");
    library.def("unlock(int address) -> ()");
    library.def("release(int address) -> ()");
  }

  static void implement(Library& library) {
    library.impl("allocate", ACCEL_BOX(&allocate));
    library.impl("unlock", ACCEL_BOX(&unlock));
    library.impl("release", ACCEL_BOX(&release));
  }

 private:
  // Never destroyed: a tensor may outlive static destruction.
  static std::map<std::int64_t, Pages>& all() {
    static auto* const pages = new std::map<std::int64_t, Pages>;
    return *pages;
  }
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
};

}  // namespace accel
