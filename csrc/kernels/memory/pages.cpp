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

std::size_t rounded_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Pages::Pages(std::size_t size_bytes, bool locks) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t needed = rounded_up(size_bytes == 0 ? 1 : size_bytes, page);
  // More than needed, to cut an aligned stretch out of it. What is never touched costs nothing.
  const std::size_t slack = needed >= kHugeBytes ? kHugeBytes : 0;
  if (needed < size_bytes || needed + slack < needed) {
    return;
  }
  void* const mapped =
      mmap(nullptr, needed + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = slack == 0 ? begin : rounded_up(begin, kHugeBytes);
  if (aligned > begin) {
    munmap(mapped, aligned - begin);
  }
  if (begin + slack > aligned) {
    munmap(reinterpret_cast<void*>(aligned + needed), begin + slack - aligned);
  }
  data_ = reinterpret_cast<char*>(aligned);
  size_bytes_ = needed;
#ifdef MADV_HUGEPAGE
  // Before the pages are first touched, which mlock() does. A device takes a large page as one segment.
  facts_.may_be_huge = slack > 0 && madvise(data_, size_bytes_, MADV_HUGEPAGE) == 0;
#endif
  if (locks) {
    facts_.is_locked = mlock(data_, size_bytes_) == 0;
    facts_.lock_error = facts_.is_locked ? 0 : errno;
  }
}

Pages::~Pages() {
  if (data_ != nullptr) {
    munmap(data_, size_bytes_);
  }
}

void Pages::unlock() {
  if (facts_.is_locked) {
    munlock(data_, size_bytes_);
    facts_.is_locked = false;
  }
}

}  // namespace accel
