// Collectives of oneCCL on host memory, by numbers: communicators and what was started on them.
//
// oneCCL does a collective on host memory within the call, and cannot end one whose peer is gone. So each communicator
// has a thread that makes these calls, and those who wait can stop waiting. A thread whose call never returns stays,
// with its communicator, until the process ends; and it takes a core, as oneCCL asks for progress all the time.
//
// All functions may be called by several threads. They throw std::invalid_argument for a number that nothing has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace accel::oneccl {

// Where the ranks of a communicator meet: one of them makes it and passes it to all.
using Address = std::array<char, 256>;

enum class DataType {
  int8 = 0,
  uint8 = 1,
  int32 = 4,
  int64 = 6,
  float16 = 8,
  float32 = 9,
  float64 = 10,
  bfloat16 = 11
};
enum class Reduction { sum, product, min, max };

// Host memory of `count` elements, borrowed until the collective has finished.
struct Buffer {
  void* data;
  std::size_t count;
  DataType type;
};

// A communicator, and the collective that is its first: the meeting of the ranks.
struct Connecting {
  std::int64_t communicator;
  std::int64_t collective;
};

// A new meeting place, kept by this process until it ends. Throws what oneCCL throws (a std::exception).
Address make_address();

// Begins to meet the other ranks.
Connecting connect(int size, int rank, const Address& address);

// Frees a communicator as soon as what was started on it has finished.
void disconnect(std::int64_t communicator);

// Each starts a collective and returns its number, for wait(), which must be called until it returns true. With a `match_id`
// the plan of the collective is kept for the next of that name, which must be of the same size and type.
std::int64_t start_all_reduce(std::int64_t communicator, const Buffer& buffer, Reduction reduction,
                              const std::string& match_id);
std::int64_t start_broadcast(std::int64_t communicator, const Buffer& buffer, int source);
std::int64_t start_barrier(std::int64_t communicator);

// Whether the collective has finished, now or within the time; its number is then forgotten. Throws std::runtime_error
// with oneCCL's words if it has failed.
bool wait(std::int64_t collective, std::int64_t timeout_ms);

}  // namespace accel::oneccl
