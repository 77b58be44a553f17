// What one thread does: cut shares into commands, keep a queue filled with them, and handle what completes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/aio/operation.h"
#include "kernels/aio/queue.h"
#include "kernels/memory/pages.h"

namespace accel::aio {

struct Settings {
  Engine engine;
  std::int64_t block_bytes;  // largest size of a command
  int depth;                 // most commands in flight, per thread
  bool single_submit;        // one system call per command, instead of one for all that are ready
  bool overlap_events;       // start new commands when one completes, instead of when all have completed
  int parallelism;           // threads that share a request
};

// Totals of all threads of a handle since it was made.
struct Counters {
  std::atomic<std::int64_t> commands{0};        // taken by a queue
  std::atomic<std::int64_t> submissions{0};     // calls that submitted commands
  std::atomic<std::int64_t> overlapped{0};      // of these, calls while earlier commands were in flight
  std::atomic<std::int64_t> most_in_flight{0};  // most commands of one thread at a time
  std::atomic<std::int64_t> retries{0};         // commands restarted after a short result or a transient error
  std::atomic<std::int64_t> direct_bytes{0};    // that bypassed the page cache
  std::atomic<std::int64_t> cached_bytes{0};    // that went through it
  std::atomic<std::int64_t> bounced_bytes{0};   // of the direct ones, copied through an aligned buffer
};

// Shares that wait for a thread.
class Inbox {
 public:
  void put(const Share& share);
  // Nothing more will be put in.
  void close();
  // False where there is no share: take_now() does not wait; take() waits until the inbox is closed.
  bool take_now(Share& share);
  bool take(Share& share);

 private:
  bool pop(Share& share);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Share> shares_;
  bool is_closed_ = false;
};

class Pump {
 public:
  // The thread that settles an operation's last byte calls `finish`.
  using Finish = std::function<void(Operation&)>;

  Pump(std::unique_ptr<Queue> queue, const Settings& settings, Inbox& inbox, Finish finish, Counters& counters);

  // Works until the inbox is closed and empty.
  void run();

 private:
  // A command, and what is needed to continue it after a part is done.
  struct Slot {
    Operation* operation = nullptr;
    Command command{};
    char* memory = nullptr;  // the caller's memory for the command's next byte
    char* bounce = nullptr;
    std::int64_t share_bytes = 0;  // for settle() in the end
    int attempts = 0;              // without progress
    bool is_plain = false;         // it falls back to the page cache
  };
  void fill();
  bool stage_next();
  void submit();
  void collect();
  void complete(const Completion& completion);
  bool retry(std::uint64_t tag, int error);
  void release(Slot& slot);
  void settle(Operation& operation, std::int64_t bytes);

  std::unique_ptr<Queue> queue_;
  const Settings settings_;
  Inbox& inbox_;
  const Finish finish_;
  Counters& counters_;

  Share share_;  // the one being cut
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> free_slots_;
  std::vector<Command> staged_;  // not yet taken by the queue
  std::vector<Completion> completions_;
  int in_flight_ = 0;
  std::chrono::microseconds pause_{0};  // before commands are submitted again that were refused for now
  // Aligned buffers for memory that a device cannot access as it is. Untouched, they cost nothing.
  const std::int64_t bounce_bytes_;
  const Pages bounces_;
  std::vector<char*> free_bounces_;
};

}  // namespace accel::aio
