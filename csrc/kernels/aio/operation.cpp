#include "kernels/aio/operation.h"

#include <cerrno>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

namespace accel::aio {

void Operation::fail(const Failure& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.kind == FailureKind::none) {
    failure_ = failure;
    has_failed_.store(true, std::memory_order_release);
  }
}

Failure Operation::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Operation::validate() {
  constexpr std::int64_t kChunkBytes = 1 << 20;
  const std::unique_ptr<char[]> chunk(new char[kChunkBytes]);
  const int descriptor = file.cached();
#ifdef POSIX_FADV_DONTNEED
  // Drop the file's pages from the cache, or they would be compared instead of the device's. The kernel drops only
  // pages that are clean and wholly in the range.
  while (fdatasync(descriptor) != 0) {
    if (errno == EINVAL || errno == EROFS) {
      break;  // this file cannot be synchronised
    }
    if (errno != EINTR) {
      fail({FailureKind::system_call, errno, request.offset});
      return;
    }
  }
  const std::int64_t page = page_bytes();
  const std::int64_t begin = request.offset / page * page;
  const std::int64_t end = (request.offset + request.size_bytes + page - 1) / page * page;
  posix_fadvise(descriptor, begin, end - begin, POSIX_FADV_DONTNEED);
#endif
  int attempts = 0;
  for (std::int64_t at = 0; at < request.size_bytes;) {
    const std::int64_t wanted = std::min(kChunkBytes, request.size_bytes - at);
    const ssize_t got = pread(descriptor, chunk.get(), static_cast<std::size_t>(wanted), request.offset + at);
    const int error = got < 0 ? errno : 0;
    if ((error == EINTR || error == EAGAIN) && ++attempts < kMaxAttempts) {
      std::this_thread::sleep_for(retry_delay(error == EAGAIN ? attempts : 0));
      continue;
    }
    if (got <= 0) {
      fail({got < 0 ? FailureKind::system_call : FailureKind::end_of_file, error, request.offset + at});
      return;
    }
    attempts = 0;
    const char* const memory = request.data + at;
    const std::int64_t same = std::mismatch(memory, memory + got, chunk.get()).first - memory;
    if (same < got) {
      fail({FailureKind::mismatch, 0, request.offset + at + same});
      return;
    }
    at += got;
  }
}

}  // namespace accel::aio
