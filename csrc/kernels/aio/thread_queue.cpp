// Threads that call pread() and pwrite(): works on every POSIX system and every file.

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#include "kernels/aio/queue.h"

namespace accel::aio {
namespace {

// A device needs a few commands at a time, not hundreds; more threads only wait for each other.
constexpr std::size_t kMaxThreads = 16;

class ThreadQueue final : public Queue {
 public:
  ~ThreadQueue() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = true;
    }
    is_waiting_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  int submit(const Command* commands, int count) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.insert(waiting_.end(), commands, commands + count);
    in_flight_ += count;
    while (threads_.size() < std::min(kMaxThreads, static_cast<std::size_t>(in_flight_))) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error& error) {
        if (!threads_.empty()) {
          break;  // the started ones do all the work
        }
        waiting_.clear();
        in_flight_ = 0;
        return -error.code().value();
      }
    }
    for (int i = 0; i < count; ++i) {
      is_waiting_.notify_one();
    }
    return count;
  }

  int collect(Completion* completions, int least, int most) override {
    std::unique_lock<std::mutex> lock(mutex_);
    is_complete_.wait(lock, [&] { return static_cast<int>(complete_.size()) >= least; });
    int taken = 0;
    for (; taken < most && !complete_.empty(); ++taken) {
      completions[taken] = complete_.front();
      complete_.pop_front();
    }
    in_flight_ -= taken;
    return taken;
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      is_waiting_.wait(lock, [&] { return is_ending_ || !waiting_.empty(); });
      if (waiting_.empty()) {
        return;
      }
      const Command command = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const std::int64_t result = run_now(command);
      lock.lock();
      complete_.push_back({command.tag, result});
      is_complete_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable is_waiting_;
  std::condition_variable is_complete_;
  std::deque<Command> waiting_;
  std::deque<Completion> complete_;
  std::vector<std::thread> threads_;  // started as needed
  int in_flight_ = 0;
  bool is_ending_ = false;
};

}  // namespace

std::int64_t run_now(const Command& command) {
  const ssize_t done = command.is_write ? pwrite(command.descriptor, command.data, command.size_bytes, command.offset)
                                        : pread(command.descriptor, command.data, command.size_bytes, command.offset);
  return done < 0 ? -errno : done;
}

std::unique_ptr<Queue> make_thread_queue() { return std::make_unique<ThreadQueue>(); }

}  // namespace accel::aio
