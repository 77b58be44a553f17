#include "kernels/aio/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#endif

namespace accel::aio {
namespace {

std::int64_t round_down(std::int64_t value, std::int64_t unit) { return value / unit * unit; }
std::int64_t round_up(std::int64_t value, std::int64_t unit) { return round_down(value + unit - 1, unit); }

// Opens the file of `descriptor` again with other flags; a dup() would share them. -1 where that fails (no /proc, or no
// permission).
int open_again(int descriptor, int flags) {
#ifdef __linux__
  char path[40];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
  return ::open(path, flags | O_CLOEXEC);
#else
  (void)descriptor, (void)flags;
  return -1;
#endif
}

// A block device's size, or -1. lseek() would move the offset, which the caller's descriptor shares.
std::int64_t device_bytes(int descriptor) {
#ifdef __linux__
  std::uint64_t bytes = 0;
  return ioctl(descriptor, BLKGETSIZE64, &bytes) == 0 ? static_cast<std::int64_t>(bytes) : -1;
#else
  (void)descriptor;
  return -1;
#endif
}

#ifdef __linux__
constexpr int kMaxInterruptions = 3;

// Allocates the blocks of a range at or beyond the file's end, and moves the end behind it. Returns 0 or an errno. The
// end moves in a second call, once all blocks are allocated: some file systems keep the blocks of a call that fails
// half-way, and without FALLOC_FL_KEEP_SIZE the file would be that much longer. Blocks beyond the end are freed with the
// file, or when its length is set; to free them now would set the length, which another process may just have changed.
// The limit of file sizes counts only in the second call, so it is checked here.
int allocate(int descriptor, std::int64_t begin, std::int64_t end) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && static_cast<std::uint64_t>(end) > limit.rlim_cur) {
    return EFBIG;
  }
  int interruptions = 0;
  for (const int mode : {FALLOC_FL_KEEP_SIZE, 0}) {
    while (fallocate(descriptor, mode, begin, end - begin) != 0) {
      // Some file systems start over after a signal, so frequent signals would make this endless.
      if (errno != EINTR || ++interruptions == kMaxInterruptions) {
        return errno;
      }
    }
  }
  return 0;
}

constexpr long kTmpfsMagic = 0x01021994;
constexpr unsigned kStatxDirectAlignment = 0x2000;
constexpr int kStatxOfDescriptor = 0x1000;  // AT_EMPTY_PATH

// struct statx of linux/stat.h, which the C library may have without the alignments (Linux 6.1).
struct Statx {
  std::uint32_t mask;
  std::uint32_t before[37];
  std::uint32_t memory_alignment;
  std::uint32_t offset_alignment;
  std::uint32_t after[24];
};
static_assert(sizeof(Statx) == 256);
#endif

}  // namespace

std::int64_t page_bytes() {
  static const long bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

// Whether the file supports O_DIRECT, and with which alignments.
bool File::find_alignment() {
#ifdef __linux__
  struct statfs system;
  if (fstatfs(cached_, &system) == 0 && static_cast<long>(system.f_type) == kTmpfsMagic) {
    return false;  // tmpfs is page cache, even if it accepts the flag
  }
  offset_alignment_ = memory_alignment_ = page_bytes();
#ifdef SYS_statx
  Statx status{};
  if (syscall(SYS_statx, cached_, "", kStatxOfDescriptor, kStatxDirectAlignment, &status) == 0 &&
      (status.mask & kStatxDirectAlignment) != 0) {
    if (status.offset_alignment == 0 || status.offset_alignment > max_alignment()) {
      return false;
    }
    offset_alignment_ = std::max<std::int64_t>(offset_alignment_, status.offset_alignment);
    memory_alignment_ = std::max<std::int64_t>(1, status.memory_alignment);
  }
#endif
  return true;
#else
  return false;
#endif
}

int File::open(int descriptor, std::int64_t offset, std::int64_t size_bytes, [[maybe_unused]] bool is_write) {
  cached_ = descriptor;
  struct stat status;
  if (fstat(cached_, &status) != 0) {
    return errno;
  }
  if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) {
    return ESPIPE;  // io_uring would ignore the offset
  }
  const bool is_regular = S_ISREG(status.st_mode);
  if (is_regular) {
    size_bytes_ = status.st_size;
  } else if (S_ISBLK(status.st_mode)) {
    size_bytes_ = device_bytes(cached_);
  }
  const int flags = fcntl(cached_, F_GETFL);
  const int access = flags & O_ACCMODE;
#ifdef O_DIRECT
  constexpr int direct_flag = O_DIRECT;
#else
  constexpr int direct_flag = 0;
#endif
  if ((flags & (direct_flag | O_APPEND)) != 0) {
    // With O_APPEND every write would go to the end; with O_DIRECT none could have an odd size.
    const int plain = open_again(cached_, access);
    if (plain < 0) {
      return EINVAL;
    }
    close(cached_);
    cached_ = plain;
  }
#ifdef __linux__
  if (is_write && is_regular && size_bytes > 0 && offset + size_bytes > size_bytes_) {
    // Otherwise every write that moves the file's end waits for the one before. This never makes a file shorter. Where
    // it was interrupted too often or is not supported, the writes move the end.
    const int error = allocate(cached_, std::max(size_bytes_, offset), offset + size_bytes);
    if (error != 0 && error != EINTR && error != EOPNOTSUPP && error != ENOSYS) {
      return error;
    }
  }
#endif
  const bool may_be_direct = direct_flag != 0 && (is_regular || S_ISBLK(status.st_mode)) && size_bytes >= page_bytes();
  if (may_be_direct && find_alignment()) {
    const std::int64_t begin = round_up(offset, offset_alignment_);
    const std::int64_t end = round_down(offset + size_bytes, offset_alignment_);
    if (begin < end) {
      direct_ = open_again(cached_, access | direct_flag);
    }
    if (direct_ >= 0) {
      body_begin_ = begin;
      body_end_ = end;
    }
  }
  return 0;
}

File::~File() {
  for (const int descriptor : {direct_, cached_}) {
    if (descriptor >= 0) {
      close(descriptor);
    }
  }
}

}  // namespace accel::aio
