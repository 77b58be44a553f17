// A queue of reads and writes: one interface over io_uring, Linux native AIO and a pool of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace accel::aio {

enum class Engine { io_uring, linux_aio, threads };

// One read or write at a file offset. The memory is borrowed until the command is complete.
struct Command {
  int descriptor;
  bool is_write;
  char* data;
  std::uint32_t size_bytes;
  std::int64_t offset;
  std::uint64_t tag;  // chosen by the caller; the completion has it too
};

struct Completion {
  std::uint64_t tag;
  std::int64_t result;  // bytes, or -errno
};

// Used by one thread at a time, which has at most as many commands in flight as the queue was made for, and none when
// the queue is destroyed.
class Queue {
 public:
  virtual ~Queue() = default;
  // Starts `count` commands, at least one, in one system call where the engine can. Returns how many of the first ones
  // it took, or -errno if it took none.
  virtual int submit(const Command* commands, int count) = 0;
  // Waits until `least` commands are complete, and takes up to `most` (>= least) of those that are. Returns how many it
  // took (fewer than `least` after a signal), or -errno if it took none.
  virtual int collect(Completion* completions, int least, int most) = 0;
};

// A queue for up to `depth` commands in flight; or null and `error` an errno, ENOSYS where the operating system lacks
// the engine. An io_uring belongs to the thread that makes it.
std::unique_ptr<Queue> make_uring_queue(int depth, int& error);
std::unique_ptr<Queue> make_linux_aio_queue(int depth, int& error);
std::unique_ptr<Queue> make_thread_queue();

inline std::unique_ptr<Queue> make_queue(Engine engine, int depth, int& error) {
  return engine == Engine::io_uring    ? make_uring_queue(depth, error)
         : engine == Engine::linux_aio ? make_linux_aio_queue(depth, error)
                                       : make_thread_queue();
}

// Runs one command in the calling thread. Returns bytes, or -errno.
std::int64_t run_now(const Command& command);

}  // namespace accel::aio
