#include "kernels/ccl/communicator.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <oneapi/ccl.hpp>

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

// Runs when the process ends, before the destructors of oneCCL, which was initialised earlier. They wait for its own
// threads, and one whose peer is gone never stops trying. With a call under way the process therefore ends here:
// what was registered before oneCCL was opened does not run.
void end_unless_idle(int status, void*) {
  if (calls_under_way.load() > 0) {
    std::fflush(nullptr);
    _exit(status);
  }
}

// What a communicator's thread is to call; it makes the communicator first.
using Call = std::function<void(std::optional<ccl::communicator>&)>;

class Collective {
 public:
  explicit Collective(Call call) : call_(std::move(call)) {}

  // Called once, by the communicator's thread.
  void run(std::optional<ccl::communicator>& communicator) {
    try {
      call_(communicator);
    } catch (const std::exception& exception) {
      error_ = exception.what();
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_done_.store(true, std::memory_order_release);
    }
    finished_.notify_all();
  }

  bool wait(std::chrono::milliseconds timeout) {
    constexpr int kYields = 200;  // for what is soon done, waking up would take longest
    for (int tries = 0; tries < kYields; ++tries) {
      if (is_done_.load(std::memory_order_acquire)) {
        return true;
      }
      std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    return finished_.wait_for(lock, timeout, [this] { return is_done_.load(std::memory_order_acquire); });
  }

  const std::string& error() const { return error_; }  // to be read when it is done

 private:
  Call call_;
  std::string error_;
  std::atomic<bool> is_done_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
};

// The calls of one communicator, in order, and whether there will be more.
class Communicator {
 public:
  void add(std::shared_ptr<Collective> collective) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(std::move(collective));
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

  // What the thread does.
  void serve() {
    std::optional<ccl::communicator> native;
    while (const auto next = take()) {
      const UnderWay mark;
      next->run(native);
    }
    const UnderWay mark;
    native.reset();
  }

 private:
  std::shared_ptr<Collective> take() {
    std::unique_lock<std::mutex> lock(mutex_);
    filled_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return nullptr;
    }
    auto next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }

  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::shared_ptr<Collective>> waiting_;
  bool is_closed_ = false;
};

// Never destroyed: threads may still work when the process ends.
struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<ccl::kvs>> places;  // that this process made
  std::map<std::int64_t, std::shared_ptr<Communicator>> communicators;
  std::map<std::int64_t, std::shared_ptr<Collective>> collectives;
  std::int64_t last = 0;
};

State& state() {
  static auto* const only = new State;
  static std::once_flag once;
  std::call_once(once, [] {
    ccl::init();
    on_exit(end_unless_idle, nullptr);
  });
  return *only;
}

template <class Value>
std::shared_ptr<Value> find(std::map<std::int64_t, std::shared_ptr<Value>>& all, std::int64_t number, const char* what) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto found = all.find(number);
  if (found == all.end()) {
    throw std::invalid_argument(std::string("There is no ") + what + " " + std::to_string(number) +
                                ".\nIt was closed, or it was already waited for.");
  }
  return found->second;
}

std::int64_t start(Communicator& communicator, Call call) {
  auto collective = std::make_shared<Collective>(std::move(call));
  State& all = state();
  std::int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    number = ++all.last;
    all.collectives.emplace(number, collective);
  }
  communicator.add(std::move(collective));
  return number;
}

std::int64_t start(std::int64_t communicator, std::function<ccl::event(const ccl::communicator&)> call) {
  return start(*find(state().communicators, communicator, "communicator"),
               [call = std::move(call)](std::optional<ccl::communicator>& native) {
                 if (!native) {
                   throw std::runtime_error("the ranks did not meet");
                 }
                 call(*native).wait();
               });
}

ccl::datatype datatype_of(DataType type) {
  switch (type) {
    case DataType::int8:
      return ccl::datatype::int8;
    case DataType::uint8:
      return ccl::datatype::uint8;
    case DataType::int32:
      return ccl::datatype::int32;
    case DataType::int64:
      return ccl::datatype::int64;
    case DataType::float16:
      return ccl::datatype::float16;
    case DataType::float32:
      return ccl::datatype::float32;
    case DataType::float64:
      return ccl::datatype::float64;
    case DataType::bfloat16:
      return ccl::datatype::bfloat16;
  }
  throw std::invalid_argument("No such type.\nUse one of DataType.");
}

ccl::reduction reduction_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return ccl::reduction::sum;
    case Reduction::product:
      return ccl::reduction::prod;
    case Reduction::min:
      return ccl::reduction::min;
    case Reduction::max:
      return ccl::reduction::max;
  }
  throw std::invalid_argument("No such reduction.\nUse one of Reduction.");
}

std::string key_of(const Address& address) { return std::string(address.begin(), address.end()); }

}  // namespace

Address make_address() {
  State& all = state();
  const auto place = ccl::create_main_kvs();
  const Address address = place->get_address();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.places.emplace(key_of(address), place);
  return address;
}

Connecting connect(int size, int rank, const Address& address) {
  State& all = state();
  auto communicator = std::make_shared<Communicator>();
  std::shared_ptr<ccl::kvs> own;
  std::int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.places.find(key_of(address));
    own = found != all.places.end() ? found->second : nullptr;
    number = ++all.last;
    all.communicators.emplace(number, communicator);
  }
  const std::int64_t meeting = start(*communicator, [=](std::optional<ccl::communicator>& native) {
    const auto place = own != nullptr ? own : ccl::create_kvs(address);
    native.emplace(ccl::create_communicator(size, rank, place));
  });
  std::thread([communicator] { communicator->serve(); }).detach();
  return {number, meeting};
}

void disconnect(std::int64_t communicator) {
  find(state().communicators, communicator, "communicator")->close();
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().communicators.erase(communicator);
}

std::int64_t start_all_reduce(std::int64_t communicator, const Buffer& buffer, Reduction reduction,
                              const std::string& match_id) {
  const auto type = datatype_of(buffer.type);
  const auto operation = reduction_of(reduction);
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
  const auto type = datatype_of(buffer.type);
  return start(communicator, [=](const ccl::communicator& native) {
    return ccl::broadcast(buffer.data, buffer.count, type, source, native);
  });
}

std::int64_t start_barrier(std::int64_t communicator) {
  return start(communicator, [](const ccl::communicator& native) { return ccl::barrier(native); });
}

bool wait(std::int64_t collective, std::int64_t timeout_ms) {
  const auto found = find(state().collectives, collective, "collective");
  if (!found->wait(std::chrono::milliseconds(timeout_ms))) {
    return false;
  }
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().collectives.erase(collective);
  }
  if (!found->error().empty()) {
    throw std::runtime_error(found->error());
  }
  return true;
}

}  // namespace accel::oneccl
