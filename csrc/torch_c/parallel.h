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

// The same for [0, count), where the calling thread first calls beside() and the others begin meanwhile: each takes
// `grain` after `grain`, so that nobody waits for a caller that is late. beside() must not throw, either; null, there
// is none, and shares are as above.
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
  std::atomic<std::int64_t> next{0};
  parallel_for(0, count, grain, [&](std::int64_t first, std::int64_t) {
    if (first == 0) {  // the caller's share, with OpenMP and with torch's own threads
      beside();
    }
    for (std::int64_t at = next.fetch_add(grain); at < count; at = next.fetch_add(grain)) {
      visit(at, at + grain < count ? at + grain : count);
    }
  });
}

}  // namespace accel
