// Checks that tensors share no memory that an update writes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/tensor_checks.h"

namespace accel {

// The memory of one parameter's tensors, `kMost` at most.
template <std::size_t kMost>
class OwnRanges {
 public:
  explicit OwnRanges(std::size_t index) : index_(index) {}

  // Refuses memory that another tensor of the parameter has. Null is ignored; `role` outlives this object.
  void add(const void* data, std::int64_t bytes, const char* role) {
    if (data == nullptr) {
      return;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const Range one{begin, begin + static_cast<std::uintptr_t>(bytes), role};
    for (std::size_t i = 0; i < count_; ++i) {
      if (one.begin < ranges_[i].end && ranges_[i].begin < one.end) {
        refuse(Argument{role, index_}.text() + " shares memory with its " + ranges_[i].role + ".",
               "Pass tensors that share no memory.");
      }
    }
    ranges_[count_++] = one;
  }

 private:
  struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;
    const char* role;
  };
  Range ranges_[kMost];
  std::size_t count_ = 0;
  std::size_t index_;
};

// The memory of all tensors that an update writes. Threads would write shared memory at the same time.
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
               "Pass each tensor once, and tensors that share no memory.");
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
