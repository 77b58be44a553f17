// One request: a stretch of memory to or from a stretch of a file, which several threads may work off in shares.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "kernels/aio/file.h"

namespace accel::aio {

enum class FailureKind : std::int64_t {
  none = 0,
  system_call = 1,  // `error` says which
  end_of_file = 2,  // the file ends at `offset`, before the request does
  mismatch = 3,     // validation: the byte at `offset` is another in the file than in memory
};

struct Failure {
  FailureKind kind = FailureKind::none;
  int error = 0;            // errno, 0 where there is none
  std::int64_t offset = 0;  // in the file, where it happened
};

struct Request {
  char* data;  // borrowed until the operation is finished
  std::int64_t size_bytes;
  std::int64_t offset;
  bool is_write;
  bool validates;
};

class Operation {
 public:
  // `counts` is of no matter here: it is the caller's mark.
  Operation(std::int64_t id, const Request& request, bool counts)
      : id(id), request(request), counts(counts), bytes_left_(request.size_bytes) {}

  const std::int64_t id;
  const Request request;
  bool counts;  // the lock of the handle guards it
  File file;

  void fail(const Failure& failure);  // the first one stays
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  Failure failure() const;

  void add_done(std::int64_t bytes) { bytes_done_.fetch_add(bytes, std::memory_order_relaxed); }
  std::int64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }

  // Bytes that nobody will touch any more, be it because they are done or because they are given up. True for the last
  // ones: whoever gets it finishes the operation.
  bool settle(std::int64_t bytes) { return bytes_left_.fetch_sub(bytes, std::memory_order_acq_rel) == bytes; }

  // Compares the file, as the device has it, with the memory, and fails where they differ.
  void validate();

 private:
  mutable std::mutex mutex_;
  Failure failure_;
  std::atomic<bool> has_failed_{false};
  std::atomic<std::int64_t> bytes_left_;
  std::atomic<std::int64_t> bytes_done_{0};
};

// A stretch of an operation, as offsets in the file.
struct Share {
  Operation* operation = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

}  // namespace accel::aio
