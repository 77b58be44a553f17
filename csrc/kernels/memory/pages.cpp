#include "kernels/memory/pages.h"

#include <cerrno>
#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

namespace accel {
namespace {

constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

std::size_t rounded_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

PageRange map_pages(std::size_t size_bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t needed = rounded_up(size_bytes == 0 ? 1 : size_bytes, page);
  // Maps more than needed and keeps an aligned range. Untouched memory costs nothing.
  const std::size_t slack = needed >= kHugeBytes ? kHugeBytes : 0;
  if (needed < size_bytes || needed + slack < needed) {
    return {};
  }
  void* const mapped = mmap(nullptr, needed + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return {};
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = slack == 0 ? begin : rounded_up(begin, kHugeBytes);
  if (aligned > begin) {
    munmap(mapped, aligned - begin);
  }
  if (begin + slack > aligned) {
    munmap(reinterpret_cast<void*>(aligned + needed), begin + slack - aligned);
  }
  auto* const data = reinterpret_cast<char*>(aligned);
#ifdef MADV_HUGEPAGE
  if (slack > 0) {
    madvise(data, needed, MADV_HUGEPAGE);  // a device takes a huge page as one segment
  }
#endif
  return {data, needed};
}

void unmap_pages(const PageRange& pages) {
  if (pages.data != nullptr) {
    munmap(pages.data, pages.size_bytes);
  }
}

int lock_pages(const PageRange& pages) { return mlock(pages.data, pages.size_bytes) == 0 ? 0 : errno; }

void unlock_pages(const PageRange& pages) { munlock(pages.data, pages.size_bytes); }

}  // namespace accel
