// To be preloaded: system calls fail as the environment says.
//
// FAULTY_PERIOD=n     the first and every n-th call fails, in turn with EINTR, EAGAIN, or by doing a part; fallocate and
//                     posix_fallocate only with EINTR
// FAULTY_REFUSED=...  of io_uring, libaio, mlock, fallocate, direct (pread and pwrite past the page cache),
//                     commands, full (of io_uring and libaio): refused with EPERM, ENOSYS, ENOMEM, EINTR, EINVAL, EPERM,
//                     EAGAIN;
//                     progress (of pread and pwrite: they do not return); events (of libaio: one at a time)

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>

// How many calls have failed because of FAULTY_PERIOD; for tests.
extern "C" std::atomic<unsigned> faulty_calls_failed;
std::atomic<unsigned> faulty_calls_failed{0};

namespace {

std::atomic<unsigned> calls{0};

bool is_refused(const char* what) {
  const char* const refused = std::getenv("FAULTY_REFUSED");
  return refused != nullptr && std::strstr(refused, what) != nullptr;
}

// 0: as it is; 1: EINTR; 2: EAGAIN; 3: a part.
unsigned fault() {
  const char* const text = std::getenv("FAULTY_PERIOD");
  const unsigned period = text != nullptr ? std::atoi(text) : 0;
  if (period == 0) {
    return 0;
  }
  const unsigned call = calls++;
  if (call % period != 0) {
    return 0;
  }
  ++faulty_calls_failed;
  return 1 + call / period % 3;
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

template <class Memory>
ssize_t transfer(const char* name, int descriptor, Memory memory, size_t size, off_t offset) {
  using Function = ssize_t (*)(int, Memory, size_t, off_t);
  const unsigned what = fault();
  if (what == 1 || what == 2) {
    errno = what == 1 ? EINTR : EAGAIN;
    return -1;
  }
  while (is_refused("progress")) {
    poll(nullptr, 0, 1000);
  }
  if (is_refused("direct") && (fcntl(descriptor, F_GETFL) & O_DIRECT) != 0) {
    errno = EINVAL;
    return -1;
  }
  return real<Function>(name)(descriptor, memory, what == 3 && size > 1 ? size / 3 + 1 : size, offset);
}

}  // namespace

extern "C" {

int fallocate(int descriptor, int mode, off_t offset, off_t size) {
  if (is_refused("fallocate") || fault() != 0) {
    errno = EINTR;
    return -1;
  }
  return real<int (*)(int, int, off_t, off_t)>("fallocate")(descriptor, mode, offset, size);
}
int posix_fallocate(int descriptor, off_t offset, off_t size) {
  return fault() != 0 ? EINTR : real<int (*)(int, off_t, off_t)>("posix_fallocate")(descriptor, offset, size);
}
ssize_t pread(int descriptor, void* memory, size_t size, off_t offset) {
  return transfer<void*>("pread", descriptor, memory, size, offset);
}
ssize_t pwrite(int descriptor, const void* memory, size_t size, off_t offset) {
  return transfer<const void*>("pwrite", descriptor, memory, size, offset);
}
// Other names of the same functions, as off_t has 64 bits.
__attribute__((alias("fallocate"))) int fallocate64(int, int, off_t, off_t);
__attribute__((alias("posix_fallocate"))) int posix_fallocate64(int, off_t, off_t);
__attribute__((alias("pread"))) ssize_t pread64(int, void*, size_t, off_t);
__attribute__((alias("pwrite"))) ssize_t pwrite64(int, const void*, size_t, off_t);

int mlock(const void* address, size_t size) {
  if (is_refused("mlock")) {
    errno = ENOMEM;
    return -1;
  }
  return real<int (*)(const void*, size_t)>("mlock")(address, size);
}

long syscall(long number, long a, long b, long c, long d, long e, long f) {
  constexpr long io_uring_setup = 425, io_uring_enter = 426;
  if ((number == io_uring_setup && is_refused("io_uring")) || (number == SYS_io_setup && is_refused("libaio"))) {
    errno = number == io_uring_setup ? EPERM : ENOSYS;
    return -1;
  }
  if (number == io_uring_enter || number == SYS_io_submit || number == SYS_io_getevents) {
    const bool starts = number != SYS_io_getevents && b > 0;
    if (starts && (is_refused("commands") || is_refused("full"))) {
      errno = is_refused("full") ? EAGAIN : EPERM;
      return -1;
    }
    if (number == SYS_io_getevents && is_refused("events")) {
      b = c = 1;  // at least, at most
    }
    const unsigned what = fault();
    if (what == 1 || what == 2) {
      errno = what == 1 ? EINTR : EAGAIN;
      return -1;
    }
    if (what == 3 && number != SYS_io_getevents && b > 1) {
      b = b / 3 + 1;  // takes a part of what is offered
    }
  }
  return real<long (*)(long, long, long, long, long, long, long)>("syscall")(number, a, b, c, d, e, f);
}

}  // extern "C"
