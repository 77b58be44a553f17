// The async_io op library: handles by number, and memory by address. The Python side checks the tensors and keeps them
// alive as long as an operation uses their memory. torch's dispatcher lets go of Python's lock while an op runs.

#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/locked_pages.h"
#include "bindings/tensor_checks.h"
#include "kernels/aio/handle.h"

namespace {

namespace aio = accel::aio;

constexpr std::int64_t kWrites = 1, kValidates = 2, kIsSplit = 4, kCounts = 8;  // bits of submit()'s flags

class Handles {
 public:
  std::int64_t add(std::shared_ptr<aio::Handle> handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    handles_.emplace(++last_, std::move(handle));
    return last_;
  }
  std::shared_ptr<aio::Handle> find(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = handles_.find(number);
    if (found == handles_.end()) {
      accel::refuse("There is no handle " + std::to_string(number) + ".", "Make one with aio_handle().");
    }
    return found->second;
  }
  void remove(std::int64_t number) {
    const auto handle = find(number);  // destroyed after the lock is gone: it waits for what is in flight
    const std::lock_guard<std::mutex> lock(mutex_);
    handles_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<aio::Handle>> handles_;
  std::int64_t last_ = 0;
};

Handles& handles() {
  static auto* const all = new Handles;  // never destroyed: a thread may still use one when the process ends
  return *all;
}

aio::Engine engine_of(const std::string& name) {
  if (name == "io_uring") {
    return aio::Engine::io_uring;
  }
  if (name == "libaio") {
    return aio::Engine::linux_aio;
  }
  if (name == "threads") {
    return aio::Engine::threads;
  }
  accel::refuse("There is no engine " + name + ".", "Use io_uring, libaio or threads.");
}

// The handle's number, or -errno where the engine gives no thread a queue of that depth.
std::int64_t create(std::string engine, std::int64_t block_bytes, std::int64_t depth, bool single_submit,
                    bool overlap_events, std::int64_t parallelism) {
  const aio::Settings settings{engine_of(engine), block_bytes,    static_cast<int>(depth),
                               single_submit,     overlap_events, static_cast<int>(parallelism)};
  auto handle = std::make_shared<aio::Handle>(settings);
  const int error = handle->start();
  return error != 0 ? -error : handles().add(std::move(handle));
}

void destroy(std::int64_t handle) { handles().remove(handle); }

// 0 or an errno. Takes over the descriptor.
std::int64_t submit(std::int64_t handle, std::int64_t operation, std::int64_t descriptor, std::int64_t address,
                    std::int64_t size_bytes, std::int64_t offset, std::int64_t flags) {
  const aio::Request request{reinterpret_cast<char*>(address), size_bytes, offset, (flags & kWrites) != 0,
                             (flags & kValidates) != 0};
  return handles().find(handle)->submit(operation, static_cast<int>(descriptor), request, (flags & kIsSplit) != 0,
                                        (flags & kCounts) != 0);
}

// Forgets the operations `acknowledged`; waits for one, or with 0 for all that count. The result begins with how many
// are still not finished; five numbers for each that is follow: id, kind of failure, errno, offset of the failure, bytes
// done.
std::vector<std::int64_t> wait(std::int64_t handle, std::int64_t operation, std::int64_t timeout_ms,
                               std::vector<std::int64_t> acknowledged) {
  std::vector<aio::Outcome> finished;
  const auto found = handles().find(handle);
  found->acknowledge(acknowledged.data(), acknowledged.size());
  const std::int64_t left =
      operation == 0 ? found->wait_all(timeout_ms, finished) : found->wait_one(operation, timeout_ms, finished);
  std::vector<std::int64_t> told{left};
  told.reserve(1 + 5 * finished.size());
  for (const aio::Outcome& outcome : finished) {
    const aio::Failure& failure = outcome.failure;
    told.insert(told.end(), {outcome.id, static_cast<std::int64_t>(failure.kind), failure.error, failure.offset,
                             outcome.bytes_done});
  }
  return told;
}

bool adopt(std::int64_t handle, std::int64_t operation) { return handles().find(handle)->adopt(operation); }

// In the order in which csrc/kernels/aio/pump.h declares them.
std::vector<std::int64_t> counters(std::int64_t handle) {
  const auto found = handles().find(handle);
  const aio::Counters& c = found->counters();
  return {c.commands, c.submissions, c.overlapped, c.most_in_flight, c.retries, c.direct_bytes, c.cached_bytes,
          c.bounced_bytes};
}

void define(accel::Library& library) {
  library.def(
      "create(str engine, int block_bytes, int depth, bool single_submit, bool overlap_events, int parallelism) "
      "-> int");
  library.def("destroy(int handle) -> ()");
  library.def(
      "submit(int handle, int operation, int descriptor, int address, int size_bytes, int offset, int flags) -> int");
  library.def("wait(int handle, int operation, int timeout_ms, int[] acknowledged) -> int[]");
  library.def("adopt(int handle, int operation) -> bool");
  library.def("counters(int handle) -> int[]");
  accel::LockedPages::define(library);
}

void implement(accel::Library& library) {
  library.impl("create", ACCEL_BOX(&create));
  library.impl("destroy", ACCEL_BOX(&destroy));
  library.impl("submit", ACCEL_BOX(&submit));
  library.impl("wait", ACCEL_BOX(&wait));
  library.impl("adopt", ACCEL_BOX(&adopt));
  library.impl("counters", ACCEL_BOX(&counters));
  accel::LockedPages::implement(library);
}

}  // namespace

ACCEL_OP_LIBRARY({nullptr, define}, {"CompositeExplicitAutograd", implement})
