#include "kernels/comm/segment.h"

#include <cerrno>
#include <cstdint>

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// Newer than some kernels and C libraries on which this compiles.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

namespace accel::comm {
namespace {

constexpr std::int64_t kLargePage = std::int64_t{1} << 21;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Returns 0 or an errno.
int reserve(int descriptor, std::int64_t bytes) {
  if (ftruncate(descriptor, bytes) != 0) {
    return errno;
  }
  if (bytes >= kLargePage) {
    int error = 0;
    const Mapping populated(descriptor, bytes, error);  // only pages that are mapped can become large ones
    if (error != 0) {
      return error;
    }
  }
  int failure = 0;
  do {                                                // a signal interrupts it, and it undoes its work
    failure = posix_fallocate(descriptor, 0, bytes);  // does nothing for pages that exist
  } while (failure == EINTR);
  return failure;
}

}  // namespace

int create_segment(std::int64_t bytes, int& error) {
  const int descriptor = static_cast<int>(syscall(SYS_memfd_create, "accel_shm_comm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (descriptor < 0) {
    error = errno;
    return -1;
  }
  error = reserve(descriptor, bytes);
  if (error == 0 && fcntl(descriptor, F_ADD_SEALS, kSeals) != 0) {
    error = errno;
  }
  if (error != 0) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

bool is_sealed_segment(int descriptor, std::int64_t bytes) {
  struct stat status{};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals && fstat(descriptor, &status) == 0 && status.st_size >= bytes;
}

Mapping::Mapping(int descriptor, std::int64_t bytes, int& error) {
  void* const memory =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    error = errno;
    return;
  }
  data_ = static_cast<char*>(memory);
  bytes_ = bytes;
  if (bytes >= kLargePage) {
    madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // best effort
  }
  // Allocate the pages now; kernels without this call do so in the first collective.
  if (madvise(memory, static_cast<std::size_t>(bytes), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    error = errno == EFAULT ? ENOSPC : errno;  // no memory for a page
  }
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, static_cast<std::size_t>(bytes_));
  }
}

}  // namespace accel::comm
