// An open file as transfers use it: through the page cache, and bypassing it where file system and offsets allow.
#pragma once

#include <cstdint>

namespace accel::aio {

// Bytes of a page. Direct transfers are aligned to a page, or to the file system's blocks where these are larger.
std::int64_t page_bytes();

// Two descriptors of one file; the second, for direct transfers, is -1 if missing. The destructor closes them.
//
// The whole pages of a transfer (its body) bypass the page cache, the edges go through it. The kernel keeps both ways
// coherent per folio, which is a page or more, so no page may go both ways. A folio of several pages may hold a page of
// the body and one of the edge; see docs/internals/kernels.md for what a concurrent reader may see.
class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  // Takes over `descriptor`, for a transfer of `size_bytes` at `offset`. Returns 0 or an errno: of fallocate() where a
  // write goes beyond the file's end; EINVAL for a descriptor with O_APPEND that cannot be opened again; ESPIPE for a
  // file without offsets.
  int open(int descriptor, std::int64_t offset, std::int64_t size_bytes, bool is_write);

  bool has_direct() const { return body_begin_ < body_end_; }
  int direct() const { return direct_; }
  // Takes any offset, size and address, for a part of the body, too.
  int cached() const { return cached_; }
  // The part of the transfer that bypasses the page cache, as offsets in the file; empty where begin >= end.
  std::int64_t body_begin() const { return body_begin_; }
  std::int64_t body_end() const { return body_end_; }
  // Direct transfers need offsets and sizes, and addresses, that are multiples of these.
  std::int64_t offset_alignment() const { return offset_alignment_; }
  std::int64_t memory_alignment() const { return memory_alignment_; }
  // A file that needs a larger offset alignment goes through the page cache.
  static std::int64_t max_alignment() { return 16 * page_bytes(); }
  // The file's length when it was opened; -1 where it has none (a character device).
  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  bool find_alignment();

  int direct_ = -1;
  int cached_ = -1;
  std::int64_t body_begin_ = 0;
  std::int64_t body_end_ = 0;
  std::int64_t offset_alignment_ = 0;
  std::int64_t memory_alignment_ = 0;
  std::int64_t size_bytes_ = -1;
};

}  // namespace accel::aio
