// An open file as transfers use it: through the page cache, and past it where file system and offsets allow.
#pragma once

#include <atomic>
#include <cstdint>

namespace accel::aio {

// Two descriptors of one file; -1 where there is none. Closes both in the end.
//
// Pages of the body go past the page cache and those at its edges through it. The kernel keeps the two ways coherent
// folio by folio: a page is a folio at least, so no page may go both ways. A folio of several pages may hold a page of
// the body beside one of the edge; docs/async_io.md says what that can show a reader at the same time.
class File {
 public:
  // Takes over `descriptor`, for a transfer of `size_bytes` at `offset`. Returns 0 or an errno: of fallocate() where a
  // write goes beyond the file's end, EINVAL for a descriptor that appends and cannot be opened again, ESPIPE for
  // a file without offsets.
  int open(int descriptor, std::int64_t offset, std::int64_t size_bytes, bool is_write, bool keeps_cached);
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  bool has_direct() const { return body_begin_ < body_end_; }
  int direct() const { return direct_; }
  int cached() const { return cached_ >= 0 ? cached_ : direct_; }
  // The part of the transfer that goes past the page cache, as offsets in the file; empty where begin >= end.
  std::int64_t body_begin() const { return body_begin_; }
  std::int64_t body_end() const { return body_end_; }
  // What offsets and sizes in the body are multiples of, and addresses of memory.
  std::int64_t offset_alignment() const { return offset_alignment_; }
  std::int64_t memory_alignment() const { return memory_alignment_; }
  // Bytes from the file's start to its end when it was opened; -1 where it has none (a device of characters).
  std::int64_t size_bytes() const { return size_bytes_; }
  // A descriptor that takes any offset, size and address, for a part of the body. Where there is none beside the direct
  // one, that one is made so, for all commands from then on; others may be in flight.
  int plain();
  // Whether commands on that descriptor go past the page cache, from what is known by now.
  bool is_direct(int descriptor) const { return descriptor == direct_ && !is_made_plain_.load(std::memory_order_relaxed); }

 private:
  bool ask_alignment();

  int direct_ = -1;
  int cached_ = -1;
  std::atomic<bool> is_made_plain_{false};  // the direct one
  std::int64_t body_begin_ = 0;
  std::int64_t body_end_ = 0;
  std::int64_t offset_alignment_ = 0;
  std::int64_t memory_alignment_ = 0;
  std::int64_t size_bytes_ = -1;
};

// The bytes that offsets and sizes must be multiples of to go past the page cache, on every file system but those with
// blocks larger than a page: a page.
std::int64_t page_bytes();

}  // namespace accel::aio
