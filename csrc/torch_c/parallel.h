// Loops on torch's own threads.
#pragma once

#include <cstdint>

#include "torch_c/functions.h"

namespace accel {

// Calls visit(begin, end) for ranges that together are [begin, end), on torch's threads: one thread for each `grain` or
// more. `visit` must not throw.
template <class Visit>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const Visit& visit) {
  const auto call = [](std::int64_t from, std::int64_t to, void* context) {
    (*static_cast<const Visit*>(context))(from, to);
  };
  ACCEL_TORCH(torch_parallel_for, begin, end, grain, call, const_cast<Visit*>(&visit));
}

}  // namespace accel
