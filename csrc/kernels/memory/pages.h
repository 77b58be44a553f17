// Memory in whole pages, from mmap().
#pragma once

#include <cstddef>

namespace accel {

struct PageRange {
  char* data = nullptr;
  std::size_t size_bytes = 0;  // in whole pages
};

// Zeroed memory, aligned to a page; from 2 MiB on aligned to a huge page, which the system then uses if it can. `data`
// is null if the allocation failed.
PageRange map_pages(std::size_t size_bytes);
void unmap_pages(const PageRange& pages);

// Keeps pages in memory, as far as the user's limit allows. Returns 0 or an errno.
int lock_pages(const PageRange& pages);
void unlock_pages(const PageRange& pages);

// Owns pages.
class Pages {
 public:
  explicit Pages(std::size_t size_bytes) : range_(map_pages(size_bytes)) {}
  ~Pages() { unmap_pages(range_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  char* data() const { return range_.data; }
  std::size_t size_bytes() const { return range_.size_bytes; }

 private:
  const PageRange range_;
};

}  // namespace accel
