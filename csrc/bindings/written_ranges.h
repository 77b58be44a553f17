// Refusing tensors that would be written through another's memory as well.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/tensor_checks.h"

namespace accel {

// The memory that an update writes, of all its tensors. What two of them share would be left to chance: threads
// write it at once.
class WrittenRanges {
 public:
  explicit WrittenRanges(std::size_t expected) { ranges_.reserve(expected); }

  // `role` outlives this object.
  void add(const void* data, std::int64_t bytes, const char* role, std::size_t index) {
    if (bytes > 0 && data != nullptr) {
      ranges_.push_back({reinterpret_cast<std::uintptr_t>(data), bytes, role, static_cast<std::uint32_t>(index)});
    }
  }

  void require_disjoint() {
    const auto before = [](const Range& a, const Range& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.index < b.index;
    };
    std::sort(ranges_.begin(), ranges_.end(), before);
    for (std::size_t k = 1; k < ranges_.size(); ++k) {
      const Range& first = ranges_[k - 1];
      const Range& second = ranges_[k];
      if (second.begin - first.begin < static_cast<std::uintptr_t>(first.bytes)) {
        Argument one{first.role, first.index};
        Argument other{second.role, second.index};
        if (one.index > other.index) {
          std::swap(one, other);
        }
        refuse(other.text() + " shares memory with " + one.text() + "; both are written.",
               "Pass each tensor once, and tensors with memory of their own.");
      }
    }
  }

 private:
  struct Range {
    std::uintptr_t begin;
    std::int64_t bytes;
    const char* role;
    std::uint32_t index;
  };
  std::vector<Range> ranges_;
};

}  // namespace accel
