// One request: a range of memory to or from a range of a file. Several threads may share the work.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "kernels/aio/file.h"

namespace accel::aio {

// Transient errors (EAGAIN and the like) are retried this often without progress: for about five seconds.
constexpr int kMaxAttempts = 1000;

inline std::chrono::microseconds retry_delay(int attempt) {
  return std::chrono::microseconds(std::min(10 * attempt, 10'000));
}

enum class FailureKind : std::int64_t {
  none = 0,
  system_call = 1,  // `error` has its errno
  end_of_file = 2,  // the file ends at `offset`, before the request does
  mismatch = 3,     // validation: file and memory differ at `offset`
};

struct Failure {
  FailureKind kind = FailureKind::none;
  int error = 0;            // errno, or 0
  std::int64_t offset = 0;  // in the file
};

struct Request {
  char* data;  // borrowed until the operation has finished
  std::int64_t size_bytes;
  std::int64_t offset;
  bool is_write;
  bool validates;
};

class Operation {
 public:
  Operation(std::int64_t id, const Request& request) : id(id), request(request), bytes_left_(request.size_bytes) {}

  const std::int64_t id;
  const Request request;
  File file;

  // Only the first failure is kept.
  void fail(const Failure& failure);
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  Failure failure() const;

  void add_done(std::int64_t bytes) { bytes_done_.fetch_add(bytes, std::memory_order_relaxed); }
  std::int64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }

  // Counts bytes that are done or given up. True for the last ones: the caller then finishes the operation.
  bool settle(std::int64_t bytes) { return bytes_left_.fetch_sub(bytes, std::memory_order_acq_rel) == bytes; }

  // Compares the file, as the device has it, with the memory; fails where they differ.
  void validate();

 private:
  mutable std::mutex mutex_;
  Failure failure_;
  std::atomic<bool> has_failed_{false};
  std::atomic<std::int64_t> bytes_left_;
  std::atomic<std::int64_t> bytes_done_{0};
};

// A part of an operation, as offsets in the file.
struct Share {
  Operation* operation = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

}  // namespace accel::aio
