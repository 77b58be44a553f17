#include "kernels/aio/handle.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <system_error>

#include <unistd.h>

namespace accel::aio {
namespace {

// Smaller shares are not worth waking a thread for.
constexpr std::int64_t kLeastShareBytes = 64 << 10;

}  // namespace

Handle::~Handle() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [&] { return running_.empty(); });
  }
  for (const auto& worker : workers_) {
    worker->inbox.close();
  }
  for (const auto& worker : workers_) {
    worker->thread.join();
  }
}

int Handle::submit(std::int64_t id, int descriptor, const Request& request, bool is_split, bool counts) {
  auto made = std::make_unique<Operation>(id, request, counts);
  Operation& operation = *made;
  // Outside the lock: to allocate a file's blocks can take its time.
  const int error = operation.file.open(descriptor, request.offset, request.size_bytes, request.is_write, request.validates);
  if (error != 0) {
    return error;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  running_.emplace(id, std::move(made));
  counted_running_ += counts ? 1 : 0;
  const std::int64_t file_bytes = operation.file.size_bytes();
  const std::int64_t missing = file_bytes < 0 ? 0 : request.offset + request.size_bytes - file_bytes;
  if (request.size_bytes == 0) {
    lock.unlock();
    finish(operation);
  } else if (!request.is_write && missing > 0) {
    lock.unlock();
    operation.fail({FailureKind::end_of_file, 0, file_bytes});  // at once: what is there is of no use alone
    finish(operation);
  } else {
    deal(operation, is_split);
  }
  return 0;
}

// Holds mutex_.
void Handle::deal(Operation& operation, bool is_split) {
  const Request& request = operation.request;
  const std::int64_t end = request.offset + request.size_bytes;
  const std::int64_t unit = std::max(page_bytes(), operation.file.offset_alignment());
  const std::int64_t first = request.offset / unit * unit;
  const std::int64_t parts = is_split ? static_cast<std::int64_t>(workers_.size()) : 1;
  std::int64_t bytes = std::max((end - first + parts - 1) / parts, kLeastShareBytes);
  bytes = (bytes + unit - 1) / unit * unit;
  for (std::int64_t begin = request.offset; begin < end;) {
    // Cut where pages begin, so that no page belongs to two threads.
    const std::int64_t next = std::min(end, begin / unit * unit + bytes);
    workers_[next_worker_]->inbox.put({&operation, begin, next});
    next_worker_ = (next_worker_ + 1) % workers_.size();
    begin = next;
  }
}

int Handle::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  std::vector<std::future<int>> told;
  for (int i = 0; i < settings_.parallelism; ++i) {
    auto worker = std::make_unique<Worker>();
    std::promise<int> has_queue;
    told.push_back(has_queue.get_future());
    try {
      worker->thread = std::thread(&Handle::work, this, std::ref(*worker), std::move(has_queue));
    } catch (const std::system_error& refused) {
      told.pop_back();
      error = refused.code().value();
      break;
    }
    workers_.push_back(std::move(worker));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::vector<std::unique_ptr<Worker>> with_queue;
  for (std::size_t i = 0; i < told.size(); ++i) {
    const int refused = told[i].get();
    if (refused == 0) {
      with_queue.push_back(std::move(workers_[i]));
    } else {
      error = refused;
      workers_[i]->thread.join();
    }
  }
  workers_ = std::move(with_queue);
  return workers_.empty() || error == EMFILE || error == ENFILE ? error : 0;
}

// Tells 0, or the errno with which it got no queue; then it ends.
void Handle::work(Worker& worker, std::promise<int> has_queue) {
  int error = 0;
  const std::unique_ptr<Queue> queue = make_queue(settings_.engine, settings_.depth, error);
  has_queue.set_value(queue == nullptr ? error : 0);
  if (queue != nullptr) {
    Pump(*queue, settings_, worker.inbox, *this, counters_).run();
  }
}

void Handle::finish(Operation& operation) {
  if (operation.request.validates && !operation.has_failed()) {
    operation.validate();
  }
  const Outcome outcome{operation.id, operation.failure(), operation.bytes_done()};
  const std::lock_guard<std::mutex> lock(mutex_);
  (operation.counts ? ended_counted_ : ended_).emplace(outcome.id, outcome);
  counted_running_ -= operation.counts ? 1 : 0;
  running_.erase(outcome.id);
  finished_.notify_all();
}

std::int64_t Handle::wait_one(std::int64_t id, std::int64_t timeout_ms, std::vector<Outcome>& finished) {
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return running_.count(id) == 0; });
  finished.clear();
  const auto found = ended_.find(id);
  if (found != ended_.end()) {
    finished.push_back(found->second);
  }
  return static_cast<std::int64_t>(running_.count(id));
}

std::int64_t Handle::wait_all(std::int64_t timeout_ms, std::vector<Outcome>& finished) {
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return counted_running_ == 0; });
  finished.clear();
  for (const auto& [id, outcome] : ended_counted_) {
    finished.push_back(outcome);
  }
  return counted_running_;
}

void Handle::acknowledge(const std::int64_t* ids, std::size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    ended_.erase(ids[i]);
    ended_counted_.erase(ids[i]);
  }
}

bool Handle::adopt(std::int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto running = running_.find(id);
  if (running != running_.end()) {
    counted_running_ += running->second->counts ? 0 : 1;
    running->second->counts = true;
    return true;
  }
  const auto ended = ended_.find(id);
  if (ended != ended_.end()) {
    ended_counted_.emplace(id, ended->second);
    ended_.erase(ended);
  }
  return ended_counted_.count(id) > 0;
}

}  // namespace accel::aio
