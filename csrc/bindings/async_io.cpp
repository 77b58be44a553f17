// The async_io op library: handles by number, and memory by address. The Python side checks tensors, and keeps them
// alive while an operation uses their memory. torch's dispatcher releases Python's lock while an op runs.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/locked_pages.h"
#include "bindings/tensor_checks.h"
#include "common/registry.h"
#include "kernels/aio/handle.h"

namespace {

namespace aio = accel::aio;

using Handles = accel::Registry<aio::Handle>;

std::shared_ptr<aio::Handle> find(std::int64_t number) {
  auto handle = Handles::instance().find(number);
  if (handle == nullptr) {
    accel::refuse("Handle " + std::to_string(number) + " is closed.", "Make one with aio_handle().");
  }
  return handle;
}

aio::Engine engine_of(const std::string& name) {
  using Engine = aio::Engine;
  for (const auto& [known, engine] : {std::pair{"io_uring", Engine::io_uring}, std::pair{"libaio", Engine::linux_aio},
                                      std::pair{"threads", Engine::threads}}) {
    if (name == known) {
      return engine;
    }
  }
  accel::refuse("Unknown engine " + name + ".", "Use io_uring, libaio or threads.");
}

// The handle's number, or -errno where no thread gets a queue of that depth.
std::int64_t create(std::string engine, std::int64_t block_bytes, std::int64_t depth, bool single_submit,
                    bool overlap_events, std::int64_t parallelism) {
  const aio::Settings settings{engine_of(engine), block_bytes,    static_cast<int>(depth),
                               single_submit,     overlap_events, static_cast<int>(parallelism)};
  auto handle = std::make_shared<aio::Handle>(settings);
  const int error = handle->start();
  return error != 0 ? -error : Handles::instance().add(std::move(handle));
}

// Waits for what is in flight.
void destroy(std::int64_t handle) { Handles::instance().take(handle); }

// 0 or an errno. The op owns the descriptor.
std::int64_t submit(std::int64_t handle, std::int64_t operation, std::int64_t descriptor, std::int64_t address,
                    std::int64_t size_bytes, std::int64_t offset, bool is_write, bool validates, bool is_split) {
  const aio::Request request{reinterpret_cast<char*>(address), size_bytes, offset, is_write, validates};
  return find(handle)->submit(operation, static_cast<int>(descriptor), request, is_split);
}

bool wait(std::int64_t handle, std::vector<std::int64_t> operations, std::int64_t timeout_ms) {
  return find(handle)->wait(operations, timeout_ms);
}

// Five numbers for each operation that has finished: number, kind of failure, errno, offset of the failure, bytes done.
// Forgets these operations.
std::vector<std::int64_t> take(std::int64_t handle, std::vector<std::int64_t> operations) {
  std::vector<std::int64_t> result;
  for (const auto& [id, failure, bytes_done] : find(handle)->take(operations)) {
    result.insert(result.end(),
                  {id, static_cast<std::int64_t>(failure.kind), failure.error, failure.offset, bytes_done});
  }
  return result;
}

// In the order of HandleCounters in op_builder/ops/io/aio_handle.py.
std::vector<std::int64_t> counters(std::int64_t handle) {
  const auto found = find(handle);
  const aio::Counters& c = found->counters();
  return {c.commands, c.submissions,  c.overlapped,   c.most_in_flight,
          c.retries,  c.direct_bytes, c.cached_bytes, c.bounced_bytes};
}

accel::Ops ops() {
  accel::Ops all = {
      {"create(str engine, int block_bytes, int depth, bool single_submit, bool overlap_events, int parallelism) "
       "-> int",
       ACCEL_BOX(&create)},
      {"destroy(int handle) -> ()", ACCEL_BOX(&destroy)},
      {"submit(int handle, int operation, int descriptor, int address, int size_bytes, int offset, bool is_write, "
       "bool validates, bool is_split) -> int",
       ACCEL_BOX(&submit)},
      {"wait(int handle, int[] operations, int timeout_ms) -> bool", ACCEL_BOX(&wait)},
      {"take(int handle, int[] operations) -> int[]", ACCEL_BOX(&take)},
      {"counters(int handle) -> int[]", ACCEL_BOX(&counters)},
  };
  all.insert(all.end(), accel::locked_pages::ops.begin(), accel::locked_pages::ops.end());
  return all;
}

}  // namespace

ACCEL_OP_TABLE(ops(), "CPU")
