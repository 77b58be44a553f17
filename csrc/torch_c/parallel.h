// Work for torch's own threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "torch_c/functions.h"

namespace accel {

// Calls visit(begin, end) for ranges that together are [begin, end), on as many of torch's threads as that is worth:
// one for each `grain` or more. `visit` must not throw.
template <class Visit>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const Visit& visit) {
  const auto call = [](std::int64_t from, std::int64_t to, void* context) {
    (*static_cast<const Visit*>(context))(from, to);
  };
  ACCEL_TORCH(torch_parallel_for, begin, end, grain, call, const_cast<Visit*>(&visit));
}

// What a caller has done on its own thread while others work.
using Beside = void (*)();

// One that Python gives as its address; 0 for none.
inline Beside function_at(std::int64_t address) {
  return reinterpret_cast<Beside>(static_cast<std::intptr_t>(address));
}

// The same for [0, count), where the calling thread calls beside() before it begins with its share, of which others
// take pieces of `grain` when they are through with theirs. beside() must not throw, either; null, there is none.
template <class Visit>
void parallel_for_beside(std::int64_t count, std::int64_t grain, const Visit& visit, Beside beside) {
  if (beside == nullptr) {
    parallel_for(0, count, grain, visit);
    return;
  }
  if (count <= 0) {  // where torch would call nothing
    beside();
    return;
  }
  // The first share is the caller's, with OpenMP and with torch's own threads. Where it ends is known when it begins.
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int64_t> end{0};
  parallel_for(0, count, grain, [&](std::int64_t first, std::int64_t last) {
    if (first == 0) {
      end = last;
      beside();
    } else {
      visit(first, last);
    }
    while (next < end) {
      const std::int64_t at = next.fetch_add(grain);
      if (at < end) {
        visit(at, at + grain < end ? at + grain : end.load());
      }
    }
  });
}

}  // namespace accel
