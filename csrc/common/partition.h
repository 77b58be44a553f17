// Work over many tensors as one range, so that threads get even shares whatever the tensors' sizes.
#pragma once

#include <cstdint>

namespace accel {

// The concatenation of `count` tensors; `starts` has count + 1 rising entries, tensor i holding the
// elements [starts[i], starts[i + 1]). Calls visit(i, begin, end) for every non-empty piece of
// [begin, end), with begin and end relative to tensor i. `starts` is borrowed.
template <class Visit>
void for_each_piece(const std::int64_t* starts, std::int64_t count, std::int64_t begin, std::int64_t end,
                    const Visit& visit) {
  std::int64_t low = 0;
  std::int64_t high = count;
  while (high - low > 1) {  // the last tensor that starts at or before `begin`
    const std::int64_t middle = low + (high - low) / 2;
    (starts[middle] <= begin ? low : high) = middle;
  }
  for (std::int64_t i = low; i < count && starts[i] < end; ++i) {
    const std::int64_t from = starts[i] < begin ? begin : starts[i];
    const std::int64_t to = starts[i + 1] < end ? starts[i + 1] : end;
    if (from < to) {
      visit(i, from - starts[i], to - starts[i]);
    }
  }
}

}  // namespace accel
