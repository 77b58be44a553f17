#include "kernels/aio/operation.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "kernels/aio/retry.h"

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
  // What the page cache holds from before would be compared instead of what the device has. The advice passes over pages
  // that the device does not have yet, and over those that are not wholly within it.
  while (fdatasync(descriptor) != 0) {
    if (errno == EINVAL || errno == EROFS) {
      break;  // nothing that could be synchronised
    }
    if (errno != EINTR) {
      fail({FailureKind::system_call, errno, request.offset});
      return;
    }
  }
  const std::int64_t begin = request.offset / page_bytes() * page_bytes();
  const std::int64_t end = request.offset + request.size_bytes;
  posix_fadvise(descriptor, begin, (end - begin + page_bytes() - 1) / page_bytes() * page_bytes(), POSIX_FADV_DONTNEED);
#endif
  int attempts = 0;
  for (std::int64_t at = 0; at < request.size_bytes;) {
    const std::int64_t asked = std::min(kChunkBytes, request.size_bytes - at);
    const ssize_t got = pread(descriptor, chunk.get(), static_cast<std::size_t>(asked), request.offset + at);
    const int error = got < 0 ? errno : 0;
    if ((error == EINTR || error == EAGAIN) && ++attempts < kMostAttempts) {
      std::this_thread::sleep_for(pause_before(error == EAGAIN ? attempts : 0));
      continue;
    }
    if (got <= 0) {
      fail({got < 0 ? FailureKind::system_call : FailureKind::end_of_file, error, request.offset + at});
      return;
    }
    attempts = 0;
    const char* const memory = request.data + at;
    if (std::memcmp(memory, chunk.get(), static_cast<std::size_t>(got)) != 0) {
      const std::int64_t same = std::mismatch(memory, memory + got, chunk.get()).first - memory;
      fail({FailureKind::mismatch, 0, request.offset + at + same});
      return;
    }
    at += got;
  }
}

}  // namespace accel::aio
