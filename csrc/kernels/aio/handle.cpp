#include "kernels/aio/handle.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

namespace accel::aio {
namespace {

// A smaller share is not worth waking a thread for.
constexpr std::int64_t kMinShareBytes = 64 << 10;

// Runs one command to its end; returns 0 or an errno.
int run_through(Queue& queue, const Command& command) {
  Completion completion{0, -EAGAIN};
  for (int attempt = 0; attempt < kMaxAttempts && (completion.result == -EAGAIN || completion.result == -EINTR);
       ++attempt) {
    std::this_thread::sleep_for(retry_delay(attempt));
    completion.result = queue.submit(&command, 1);
    if (completion.result == 1) {
      int taken = 0;
      while (taken == 0 || taken == -EINTR || taken == -EAGAIN) {
        taken = queue.collect(&completion, 1, 1);
      }
      completion.result = taken < 0 ? taken : completion.result;
    }
  }
  return completion.result == 1 ? 0 : completion.result == 0 ? EIO : static_cast<int>(-completion.result);
}

// Writes and reads one byte of memory that acts as a file: sandboxes may grant a queue but not its use.
int probe(Queue& queue) {
#if defined(__linux__) && defined(SYS_memfd_create)
  static char byte = 0;  // outlives a command that cannot be collected
  const int descriptor = static_cast<int>(syscall(SYS_memfd_create, "accel-probe", 1U));
  if (descriptor < 0) {
    return 0;  // the first transfer will show it
  }
  int error = run_through(queue, {descriptor, true, &byte, 1, 0, 0});
  error = error != 0 ? error : run_through(queue, {descriptor, false, &byte, 1, 0, 0});
  close(descriptor);
  return error;
#else
  static_cast<void>(queue);
  return 0;
#endif
}

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

int Handle::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  std::vector<std::unique_ptr<Worker>> started;
  std::vector<std::future<int>> results;
  for (int i = 0; i < settings_.parallelism; ++i) {
    auto worker = std::make_unique<Worker>();
    std::promise<int> result;
    auto future = result.get_future();
    try {
      worker->thread = std::thread(&Handle::work, this, std::ref(*worker), std::move(result));
    } catch (const std::system_error& refused) {
      error = refused.code().value();
      break;
    }
    results.push_back(std::move(future));
    started.push_back(std::move(worker));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (std::size_t i = 0; i < started.size(); ++i) {
    if (const int refused = results[i].get()) {
      error = refused;
      started[i]->thread.join();
    } else {
      workers_.push_back(std::move(started[i]));
    }
  }
  return workers_.empty() || error == EMFILE || error == ENFILE ? error : 0;
}

// Reports through `result` 0, or the errno with which the thread got no queue.
void Handle::work(Worker& worker, std::promise<int> result) {
  int error = 0;
  std::unique_ptr<Queue> queue = make_queue(settings_.engine, settings_.depth, error);
  if (queue != nullptr && settings_.engine != Engine::threads) {
    error = probe(*queue);
  }
  const bool is_usable = queue != nullptr && error == 0;
  result.set_value(is_usable ? 0 : error);
  if (is_usable) {
    Pump(
        std::move(queue), settings_, worker.inbox, [this](Operation& operation) { finish(operation); }, counters_)
        .run();
  }
}

int Handle::submit(std::int64_t id, int descriptor, const Request& request, bool is_split) {
  auto made = std::make_unique<Operation>(id, request);
  Operation& operation = *made;
  // Without the lock: allocating a file's blocks can take long.
  if (const int error = operation.file.open(descriptor, request.offset, request.size_bytes, request.is_write)) {
    return error;
  }
  const std::int64_t file_bytes = operation.file.size_bytes();
  const bool is_too_short = file_bytes >= 0 && file_bytes < request.offset + request.size_bytes;
  std::unique_lock<std::mutex> lock(mutex_);
  running_.emplace(id, std::move(made));
  if (request.size_bytes > 0 && (request.is_write || !is_too_short)) {
    deal(operation, is_split);
    return 0;
  }
  lock.unlock();
  if (request.size_bytes > 0) {
    operation.fail({FailureKind::end_of_file, 0, file_bytes});
  }
  finish(operation);
  return 0;
}

// The caller holds mutex_.
void Handle::deal(Operation& operation, bool is_split) {
  const Request& request = operation.request;
  const std::int64_t end = request.offset + request.size_bytes;
  const std::int64_t unit = std::max(page_bytes(), operation.file.offset_alignment());
  const std::int64_t first = request.offset / unit * unit;
  const std::int64_t parts = is_split ? static_cast<std::int64_t>(workers_.size()) : 1;
  std::int64_t bytes = std::max((end - first + parts - 1) / parts, kMinShareBytes);
  bytes = (bytes + unit - 1) / unit * unit;
  for (std::int64_t begin = request.offset; begin < end;) {
    // Cut between pages, so that no page belongs to two threads.
    const std::int64_t next = std::min(end, begin / unit * unit + bytes);
    workers_[next_worker_]->inbox.put({&operation, begin, next});
    next_worker_ = (next_worker_ + 1) % workers_.size();
    begin = next;
  }
}

void Handle::finish(Operation& operation) {
  if (operation.request.validates && !operation.has_failed()) {
    operation.validate();
  }
  const Outcome outcome{operation.id, operation.failure(), operation.bytes_done()};
  const std::lock_guard<std::mutex> lock(mutex_);
  outcomes_.emplace(outcome.id, outcome);
  running_.erase(outcome.id);
  finished_.notify_all();
}

bool Handle::wait(const std::vector<std::int64_t>& ids, std::int64_t timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::unique_lock<std::mutex> lock(mutex_);
  return std::all_of(ids.begin(), ids.end(), [&](std::int64_t id) {
    return finished_.wait_until(lock, deadline, [&] { return running_.count(id) == 0; });
  });
}

std::vector<Outcome> Handle::take(const std::vector<std::int64_t>& ids) {
  std::vector<Outcome> taken;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::int64_t id : ids) {
    if (const auto node = outcomes_.extract(id)) {
      taken.push_back(node.mapped());
    }
  }
  return taken;
}

}  // namespace accel::aio
