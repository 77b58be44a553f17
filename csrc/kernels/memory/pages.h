// Memory in whole pages, of the system's own and not of the allocator.
#pragma once

#include <cstddef>
#include <utility>

namespace accel {

// What the system gave of what was asked for.
struct PageFacts {
  bool is_locked = false;       // the pages stay in memory: mlock()
  int lock_error = 0;           // errno where that was refused, 0 where it was not asked for or is so
  bool may_be_huge = false;     // large pages were asked for: they come where the system has them
};

// A stretch of zeros, aligned to a page, and to a large page where it has the size of one. Unmapped in the end.
class Pages {
 public:
  static constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

  Pages() = default;
  // `data()` is null where there is no memory. `locks`: keep it in memory, as far as the user's limit allows.
  explicit Pages(std::size_t size_bytes, bool locks = false);
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    swap(other);
    return *this;
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();

  char* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  const PageFacts& facts() const { return facts_; }
  void unlock();

 private:
  void swap(Pages& other) {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(facts_, other.facts_);
  }

  char* data_ = nullptr;
  std::size_t size_bytes_ = 0;  // in whole pages
  PageFacts facts_;
};

}  // namespace accel
