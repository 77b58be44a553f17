// Work for torch's own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

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

// What a caller has done on its own thread while others work, if anything. It must not throw.
using Beside = std::function<void()>;

// One that Python gives as its address; 0 for none.
inline Beside function_at(std::int64_t address) {
  const auto function = reinterpret_cast<void (*)()>(static_cast<std::intptr_t>(address));
  return function == nullptr ? Beside() : Beside(function);
}

// What Python is to be asked, by the address of a function, and what it returns for yes. 0: there is nothing to ask.
struct Question {
  std::int64_t address = 0;
  std::int64_t yes = 0;

  bool is_answered_yes() const {
    const auto function = reinterpret_cast<std::int64_t (*)()>(static_cast<std::intptr_t>(address));
    return function == nullptr || function() == yes;
  }
};

// The same for [0, count), where the calling thread first calls beside() and the others begin meanwhile: each takes
// `grain` after `grain`, so that nobody waits for a caller that is late. Where there is no beside(), shares are as above.
template <class Visit>
void parallel_for_beside(std::int64_t count, std::int64_t grain, const Visit& visit, const Beside& beside) {
  if (!beside) {
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
