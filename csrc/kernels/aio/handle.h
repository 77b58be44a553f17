// The engine as its users see it: requests go in, finished operations come out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/aio/operation.h"
#include "kernels/aio/pump.h"

namespace accel::aio {

// How an operation ended.
struct Outcome {
  std::int64_t id;
  Failure failure;
  std::int64_t bytes_done;  // of all parts together, which need not be the first ones
};

// Safe to use from several threads, once it is started. Threads of its own leave all signals to others. To destroy it
// waits for all that is in flight.
class Handle final : private Finisher {
 public:
  explicit Handle(const Settings& settings) : settings_(settings) {}
  ~Handle();

  // Starts the threads; to be called once, before all else. Those that the system refuses, or refuses a queue, the others
  // do without. Returns 0, or an errno where none is left, or where queues have taken all descriptors that files need.
  int start();

  // Starts a request on a file. `descriptor` must be open for it and is taken over, whatever the result.
  // `id` is the caller's choice and new. `is_split`: among all threads. `counts`: it is one of those that wait_all()
  // waits for. Returns 0 or an errno, which is the file's.
  int submit(std::int64_t id, int descriptor, const Request& request, bool is_split, bool counts);

  // Waits for one operation, or for all that count, up to `timeout_ms`; tells those that are finished, and tells them
  // again until they are acknowledged. Returns how many of those asked for are not finished.
  std::int64_t wait_one(std::int64_t id, std::int64_t timeout_ms, std::vector<Outcome>& finished);
  std::int64_t wait_all(std::int64_t timeout_ms, std::vector<Outcome>& finished);

  // Forgets finished operations; ids of others are passed over.
  void acknowledge(const std::int64_t* ids, std::size_t count);

  // Lets an operation count from now on. False where there is none of that id, running or not acknowledged.
  bool adopt(std::int64_t id);

  const Counters& counters() const { return counters_; }

 private:
  struct Worker {
    Inbox inbox;
    std::thread thread;
  };

  void finish(Operation& operation) override;
  void work(Worker& worker, std::promise<int> has_queue);
  void deal(Operation& operation, bool is_split);

  const Settings settings_;
  Counters counters_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::map<std::int64_t, std::unique_ptr<Operation>> running_;
  std::map<std::int64_t, Outcome> ended_;  // not acknowledged
  std::map<std::int64_t, Outcome> ended_counted_;
  std::int64_t counted_running_ = 0;
  std::size_t next_worker_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace accel::aio
