// Collectives of oneCCL on host memory. Numbers identify communicators and collectives.
//
// oneCCL runs a collective on host memory inside the call, and cannot cancel one whose peer has died. Each communicator
// therefore has a thread that makes the calls, so that a waiting caller can time out. A thread whose call never returns
// stays, with its communicator, until the process ends; it occupies a core, because oneCCL polls for progress.
//
// All functions are thread-safe. They throw std::invalid_argument for an unknown number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace accel::oneccl {

// Where the ranks of a communicator meet: one rank creates it and passes it to the others.
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

// A communicator, and its first collective, in which the ranks meet.
struct Connecting {
  std::int64_t communicator;
  std::int64_t collective;
};

// Creates an address, which this process keeps until it ends. Throws oneCCL's exceptions (std::exception).
Address make_address();

// Starts to connect to the other ranks.
Connecting connect(int size, int rank, const Address& address);

// Frees a communicator as soon as its collectives have finished.
void disconnect(std::int64_t communicator);

// Each starts a collective and returns its number. Call wait() with it until that returns true. With a `match_id`,
// oneCCL keeps its plan of the collective for the next one of that name, which must have the same size and type.
std::int64_t start_all_reduce(std::int64_t communicator, const Buffer& buffer, Reduction reduction,
                              const std::string& match_id);
std::int64_t start_broadcast(std::int64_t communicator, const Buffer& buffer, int source);
std::int64_t start_barrier(std::int64_t communicator);

// Returns true if the collective finishes within the time; its number is invalid afterwards. Throws std::runtime_error
// with oneCCL's message if it failed.
bool wait(std::int64_t collective, std::int64_t timeout_ms);

}  // namespace accel::oneccl
