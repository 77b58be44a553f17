// What one thread does: cut shares into commands, keep a queue filled with them, and see to what comes back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "kernels/aio/operation.h"
#include "kernels/aio/queue.h"
#include "kernels/memory/pages.h"

namespace accel::aio {

using Clock = std::chrono::steady_clock;

struct Settings {
  Engine engine;
  std::int64_t block_bytes;  // most bytes of a command
  int depth;                 // most commands in flight, of each thread
  bool single_submit;        // a system call for each command, instead of one for all that are ready
  bool overlap_events;       // new commands as soon as one is complete, instead of when all are
  int parallelism;           // threads that share a request
};

// What was done since the handle was made, by all its threads.
struct Counters {
  std::atomic<std::int64_t> commands{0};     // taken by a queue
  std::atomic<std::int64_t> submissions{0};  // calls that handed commands over
  std::atomic<std::int64_t> overlapped{0};   // of those, with others in flight that an earlier round had started
  std::atomic<std::int64_t> most_in_flight{0};  // commands of one thread at a time
  std::atomic<std::int64_t> retries{0};         // commands begun again after a short result or a transient error
  std::atomic<std::int64_t> direct_bytes{0};    // done past the page cache
  std::atomic<std::int64_t> cached_bytes{0};    // done through it
  std::atomic<std::int64_t> bounced_bytes{0};   // of the direct ones, by way of a buffer of our own
};

// Told of each operation when its last byte is settled, by the thread that settled it.
class Finisher {
 public:
  virtual void finish(Operation& operation) = 0;

 protected:
  ~Finisher() = default;
};

// Shares that wait for a thread.
class Inbox {
 public:
  void put(const Share& share);
  void close();  // nothing more comes
  // Whether there was one: take() waits for it until the inbox is closed, the others until then and not at all.
  bool take(Share& share);
  bool take_before(Share& share, Clock::time_point deadline);
  bool take_now(Share& share);

 private:
  bool pop(Share& share);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Share> shares_;
  bool is_closed_ = false;
};

class Pump {
 public:
  Pump(Queue& queue, const Settings& settings, Inbox& inbox, Finisher& finisher, Counters& counters);

  // Works off shares until the inbox is closed and nothing is left.
  void run();

 private:
  // A command with what is needed to go on with it after a part of it was done.
  struct Slot {
    Operation* operation = nullptr;
    Command command{};
    char* memory = nullptr;  // the caller's, where the command's next byte belongs
    char* bounce = nullptr;
    std::int64_t share_bytes = 0;  // what it settles in the end
    int attempts = 0;       // without progress
    bool is_plain = false;  // it goes through the page cache after all
  };
  // A slot whose command begins again at a time.
  struct Delayed {
    Clock::time_point due;
    std::uint64_t tag;
  };

  bool await_work();
  Clock::time_point next_due() const;
  void stage_due();
  void fill();
  bool stage_next();
  void hand_over();
  void collect();
  void complete(const Completion& completion);
  bool begin_again(std::uint64_t tag, int error);
  void release(Slot& slot);
  void settle(Operation& operation, std::int64_t bytes);
  char* take_bounce();
  std::int64_t bounce_bytes() const;

  Queue& queue_;
  const Settings settings_;
  Inbox& inbox_;
  Finisher& finisher_;
  Counters& counters_;

  Share share_;  // the one being cut
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> free_slots_;
  std::vector<Command> staged_;  // not yet taken by the queue
  std::vector<Delayed> delayed_;
  std::vector<Completion> completions_;
  std::vector<char*> free_bounces_;
  Pages bounces_;
  int in_flight_ = 0;
};

}  // namespace accel::aio
