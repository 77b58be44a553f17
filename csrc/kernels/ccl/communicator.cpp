#include "kernels/ccl/communicator.h"

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <oneapi/ccl.hpp>

namespace accel::oneccl {

namespace {

static_assert(std::tuple_size<Address>::value == ccl::kvs::address_max_size, "as oneCCL's addresses");

struct Communicator {
  ccl::communicator native;
  bool is_lost = false;  // a collective on it was given up
};

struct Collective {
  ccl::event event;
  std::shared_ptr<Communicator> communicator;
};

// Never destroyed: oneCCL's own threads may still work when the process ends.
struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<ccl::kvs>> places;  // that this process made
  std::map<std::int64_t, std::shared_ptr<Communicator>> communicators;
  std::map<std::int64_t, std::shared_ptr<Collective>> collectives;
  std::vector<std::shared_ptr<Collective>> given_up;
  std::int64_t last = 0;
};

State& state() {
  static auto* const only = new State;
  static std::once_flag once;
  std::call_once(once, [] { ccl::init(); });
  return *only;
}

template <class Value>
std::shared_ptr<Value> find(std::map<std::int64_t, std::shared_ptr<Value>>& all, std::int64_t number, const char* what) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto found = all.find(number);
  if (found == all.end()) {
    throw std::invalid_argument(std::string("There is no ") + what + " " + std::to_string(number) +
                                ".\nIt was closed, or its result was already waited for.");
  }
  return found->second;
}

std::shared_ptr<Communicator> communicator_of(std::int64_t number) {
  return find(state().communicators, number, "communicator");
}

std::int64_t keep(ccl::event&& event, std::shared_ptr<Communicator> communicator) {
  auto collective = std::make_shared<Collective>(Collective{std::move(event), std::move(communicator)});
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().collectives.emplace(++state().last, std::move(collective));
  return state().last;
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

}  // namespace

Address make_address() {
  State& all = state();
  const auto place = ccl::create_main_kvs();
  const Address address = place->get_address();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.places.emplace(std::string(address.begin(), address.end()), place);
  return address;
}

std::int64_t connect(int size, int rank, const Address& address) {
  State& all = state();
  std::shared_ptr<ccl::kvs> place;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto own = all.places.find(std::string(address.begin(), address.end()));
    if (own != all.places.end()) {
      place = own->second;
    }
  }
  if (place == nullptr) {
    place = ccl::create_kvs(address);
  }
  auto made = std::make_shared<Communicator>(Communicator{ccl::create_communicator(size, rank, place)});
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.communicators.emplace(++all.last, std::move(made));
  return all.last;
}

void disconnect(std::int64_t communicator) {
  const auto found = communicator_of(communicator);  // destroyed after the lock is gone
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (!found->is_lost) {
    state().communicators.erase(communicator);
  }
}

std::int64_t start_all_reduce(std::int64_t communicator, const Buffer& buffer, Reduction reduction,
                              const std::string& match_id) {
  auto found = communicator_of(communicator);
  auto attributes = ccl::create_operation_attr<ccl::allreduce_attr>();
  attributes.set<ccl::operation_attr_id::synchronous>(false);
  if (!match_id.empty()) {
    attributes.set<ccl::operation_attr_id::match_id>(ccl::string_class(match_id));
    attributes.set<ccl::operation_attr_id::to_cache>(true);
  }
  auto event = ccl::allreduce(buffer.data, buffer.data, buffer.count, datatype_of(buffer.type), reduction_of(reduction),
                              found->native, attributes);
  return keep(std::move(event), std::move(found));
}

std::int64_t start_broadcast(std::int64_t communicator, const Buffer& buffer, int source) {
  auto found = communicator_of(communicator);
  auto event = ccl::broadcast(buffer.data, buffer.count, datatype_of(buffer.type), source, found->native);
  return keep(std::move(event), std::move(found));
}

std::int64_t start_barrier(std::int64_t communicator) {
  auto found = communicator_of(communicator);
  auto event = ccl::barrier(found->native);
  return keep(std::move(event), std::move(found));
}

bool wait(std::int64_t collective, std::int64_t timeout_ms) {
  using Clock = std::chrono::steady_clock;
  constexpr int kYields = 1000;  // about a millisecond; one that takes longer can wait for a sleeping thread
  const auto found = find(state().collectives, collective, "collective");
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (int tries = 0; !found->event.test(); ++tries) {
    if (Clock::now() >= deadline) {
      return false;
    }
    if (tries < kYields) {
      std::this_thread::yield();  // oneCCL's own thread may need this core
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().collectives.erase(collective);
  return true;
}

void give_up(std::int64_t collective) {
  auto found = find(state().collectives, collective, "collective");
  const std::lock_guard<std::mutex> lock(state().mutex);
  found->communicator->is_lost = true;
  state().collectives.erase(collective);
  state().given_up.push_back(std::move(found));
}

}  // namespace accel::oneccl
