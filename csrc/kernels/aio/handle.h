// The engine's interface: requests go in, outcomes of finished operations come out.
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
  std::int64_t bytes_done;  // of all parts together; they need not be the first ones
};

// Thread-safe once started. Its threads block all signals. The destructor waits for everything in flight.
class Handle {
 public:
  explicit Handle(const Settings& settings) : settings_(settings) {}
  ~Handle();

  // Starts the threads; call it once, first. A thread that the system refuses, or refuses a queue, is left out. Returns
  // 0, or an errno where no thread is left or the queues took all descriptors.
  int start();

  // Starts a request on a file. `descriptor` must be open for it; the handle owns it, whatever the result. The caller
  // chooses an `id`, which must be new. `is_split`: all threads share the request. Returns 0 or an errno of the file.
  int submit(std::int64_t id, int descriptor, const Request& request, bool is_split);

  // Waits up to `timeout_ms` for operations; true when all have finished. Unknown ids count as finished.
  bool wait(const std::vector<std::int64_t>& ids, std::int64_t timeout_ms);

  // Returns the outcomes of those operations that have finished, and forgets them.
  std::vector<Outcome> take(const std::vector<std::int64_t>& ids);

  const Counters& counters() const { return counters_; }

 private:
  struct Worker {
    Inbox inbox;
    std::thread thread;
  };

  void finish(Operation& operation);
  void work(Worker& worker, std::promise<int> has_queue);
  void deal(Operation& operation, bool is_split);

  const Settings settings_;
  Counters counters_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::map<std::int64_t, std::unique_ptr<Operation>> running_;
  std::map<std::int64_t, Outcome> outcomes_;
  std::size_t next_worker_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace accel::aio
