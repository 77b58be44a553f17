#include "kernels/ccl/communicator.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <oneapi/ccl.hpp>

#include "common/registry.h"

namespace accel::oneccl {

namespace {

static_assert(std::tuple_size<Address>::value == ccl::kvs::address_max_size, "as oneCCL's addresses");

std::atomic<int> calls_under_way{0};

// Lives while a thread is inside oneCCL.
class UnderWay {
 public:
  UnderWay() { calls_under_way.fetch_add(1); }
  ~UnderWay() { calls_under_way.fetch_sub(1); }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
};

// Runs when the process ends, before the destructors of oneCCL. Those wait for oneCCL's threads, and a thread whose
// peer has died never stops trying. If a call is still running, the process therefore ends here, without the exit
// handlers that were registered before oneCCL was opened.
void end_unless_idle(int status, void*) {
  if (calls_under_way.load() > 0) {
    std::fflush(nullptr);
    _exit(status);
  }
}

// The work of a communicator's thread; it creates the communicator first.
using Call = std::packaged_task<void(std::optional<ccl::communicator>&)>;
using Collective = std::shared_future<void>;

// The queued calls of one communicator, and whether more may follow.
class Communicator {
 public:
  void add(Call call) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(std::move(call));
    }
    filled_.notify_one();
  }

  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
    }
    filled_.notify_one();
  }

  // Runs in the thread.
  void serve() {
    std::optional<ccl::communicator> native;
    while (auto next = take()) {
      const UnderWay mark;
      (*next)(native);
    }
    const UnderWay mark;
    native.reset();
  }

 private:
  std::optional<Call> take() {
    std::unique_lock<std::mutex> lock(mutex_);
    filled_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return std::nullopt;
    }
    std::optional<Call> next(std::move(waiting_.front()));
    waiting_.pop_front();
    return next;
  }

  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Call> waiting_;
  bool is_closed_ = false;
};

// The meeting places that this process has made. Never destroyed: threads may still work when the process ends.
struct Places {
  std::mutex mutex;
  std::map<Address, std::shared_ptr<ccl::kvs>> by_address;
};

// The first call initializes oneCCL.
Places& places() {
  static auto* const only = [] {
    ccl::init();
    on_exit(end_unless_idle, nullptr);
    return new Places;
  }();
  return *only;
}

template <class Object>
std::shared_ptr<Object> find(std::int64_t number, const char* what) {
  auto found = Registry<Object>::instance().find(number);
  if (found == nullptr) {
    throw std::invalid_argument(std::string("Unknown ") + what + " " + std::to_string(number) +
                                ".\nIt was closed or has finished.");
  }
  return found;
}

std::int64_t start(Communicator& communicator, Call call) {
  const auto number = Registry<Collective>::instance().add(std::make_shared<Collective>(call.get_future()));
  communicator.add(std::move(call));
  return number;
}

std::int64_t start(std::int64_t communicator, std::function<ccl::event(const ccl::communicator&)> call) {
  return start(*find<Communicator>(communicator, "communicator"),
               Call([call = std::move(call)](std::optional<ccl::communicator>& native) {
                 if (!native) {
                   throw std::runtime_error("the ranks did not meet");
                 }
                 call(*native).wait();
               }));
}

// The enumerations of communicator.h have oneCCL's numbers.
static_assert(static_cast<int>(DataType::int8) == static_cast<int>(ccl::datatype::int8));
static_assert(static_cast<int>(DataType::uint8) == static_cast<int>(ccl::datatype::uint8));
static_assert(static_cast<int>(DataType::int32) == static_cast<int>(ccl::datatype::int32));
static_assert(static_cast<int>(DataType::int64) == static_cast<int>(ccl::datatype::int64));
static_assert(static_cast<int>(DataType::float16) == static_cast<int>(ccl::datatype::float16));
static_assert(static_cast<int>(DataType::float32) == static_cast<int>(ccl::datatype::float32));
static_assert(static_cast<int>(DataType::float64) == static_cast<int>(ccl::datatype::float64));
static_assert(static_cast<int>(DataType::bfloat16) == static_cast<int>(ccl::datatype::bfloat16));
static_assert(static_cast<int>(Reduction::sum) == static_cast<int>(ccl::reduction::sum));
static_assert(static_cast<int>(Reduction::product) == static_cast<int>(ccl::reduction::prod));
static_assert(static_cast<int>(Reduction::min) == static_cast<int>(ccl::reduction::min));
static_assert(static_cast<int>(Reduction::max) == static_cast<int>(ccl::reduction::max));

}  // namespace

Address make_address() {
  Places& own = places();
  const auto place = ccl::create_main_kvs();
  const Address address = place->get_address();
  const std::lock_guard<std::mutex> lock(own.mutex);
  own.by_address.emplace(address, place);
  return address;
}

Connecting connect(int size, int rank, const Address& address) {
  std::shared_ptr<ccl::kvs> own;
  {
    const std::lock_guard<std::mutex> lock(places().mutex);
    const auto found = places().by_address.find(address);
    own = found != places().by_address.end() ? found->second : nullptr;
  }
  auto communicator = std::make_shared<Communicator>();
  const std::int64_t number = Registry<Communicator>::instance().add(communicator);
  const std::int64_t meeting = start(*communicator, Call([=](std::optional<ccl::communicator>& native) {
    const auto place = own != nullptr ? own : ccl::create_kvs(address);
    native.emplace(ccl::create_communicator(size, rank, place));
  }));
  std::thread([communicator] { communicator->serve(); }).detach();
  return {number, meeting};
}

void disconnect(std::int64_t communicator) {
  find<Communicator>(communicator, "communicator")->close();
  Registry<Communicator>::instance().take(communicator);
}

std::int64_t start_all_reduce(std::int64_t communicator, const Buffer& buffer, Reduction reduction,
                              const std::string& match_id) {
  const auto type = static_cast<ccl::datatype>(buffer.type);
  const auto operation = static_cast<ccl::reduction>(reduction);
  return start(communicator, [=](const ccl::communicator& native) {
    auto attributes = ccl::create_operation_attr<ccl::allreduce_attr>();
    if (!match_id.empty()) {
      attributes.set<ccl::operation_attr_id::match_id>(ccl::string_class(match_id));
      attributes.set<ccl::operation_attr_id::to_cache>(true);
    }
    return ccl::allreduce(buffer.data, buffer.data, buffer.count, type, operation, native, attributes);
  });
}

std::int64_t start_broadcast(std::int64_t communicator, const Buffer& buffer, int source) {
  const auto type = static_cast<ccl::datatype>(buffer.type);
  return start(communicator, [=](const ccl::communicator& native) {
    return ccl::broadcast(buffer.data, buffer.count, type, source, native);
  });
}

std::int64_t start_barrier(std::int64_t communicator) {
  return start(communicator, [](const ccl::communicator& native) { return ccl::barrier(native); });
}

bool wait(std::int64_t collective, std::int64_t timeout_ms) {
  constexpr int kYields = 200;  // a wake-up takes longer than a short collective
  const auto found = find<Collective>(collective, "collective");
  const auto is_done = [&](std::chrono::milliseconds timeout) {
    return found->wait_for(timeout) == std::future_status::ready;
  };
  for (int tries = 0; tries < kYields && !is_done({}); ++tries) {
    std::this_thread::yield();
  }
  if (!is_done(std::chrono::milliseconds(timeout_ms))) {
    return false;
  }
  Registry<Collective>::instance().take(collective);
  try {
    found->get();
  } catch (const std::exception& exception) {
    throw std::runtime_error(exception.what());
  }
  return true;
}

}  // namespace accel::oneccl
