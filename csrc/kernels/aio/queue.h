// A queue of reads and writes that the operating system works off: one interface over io_uring, Linux native AIO and
// a pool of threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace accel::aio {

enum class Engine { io_uring, linux_aio, threads };

// One read or write at a file offset. The memory is borrowed until the command is complete.
struct Command {
  int descriptor;
  bool is_write;
  char* data;
  std::uint32_t size_bytes;
  std::int64_t offset;
  std::uint64_t tag;  // of the caller's choice, comes back with the completion
};

struct Completion {
  std::uint64_t tag;
  std::int64_t result;  // bytes, or -errno
};

// How long to wait; nothing: for ever.
using Timeout = std::optional<std::chrono::nanoseconds>;

// Used by one thread at a time. To destroy a queue with commands in flight is an error of the caller.
class Queue {
 public:
  virtual ~Queue() = default;
  // Starts the first of `commands`, as many as there is room for, in one system call where the engine can.
  // Returns how many it took, or -errno if it took none.
  virtual int submit(const Command* commands, int count) = 0;
  // Waits until `least` commands are complete, and takes up to `most` (>= least) of those that are.
  // Returns how many it took, which a signal or the timeout can make fewer, or -errno if it took none. An engine of a
  // kernel that knows no timeout there waits without.
  virtual int collect(Completion* completions, int least, int most, Timeout timeout) = 0;
};

// A queue for up to `depth` commands in flight, or nothing and `error` an errno: ENOSYS where the engine is not of this
// operating system. An io_uring belongs to the thread that makes it.
std::unique_ptr<Queue> make_queue(Engine engine, int depth, int& error);

std::unique_ptr<Queue> make_uring_queue(int depth, int& error);
std::unique_ptr<Queue> make_linux_aio_queue(int depth, int& error);
std::unique_ptr<Queue> make_thread_queue(int depth, int& error);

}  // namespace accel::aio
