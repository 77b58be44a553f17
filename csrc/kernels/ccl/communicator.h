// Collectives of oneCCL on host memory, by numbers: communicators and what was started on them.
//
// oneCCL cannot end a collective whose peer is gone. So nothing here waits inside it: what was started is asked now and
// then whether it has finished, for as long as the caller likes, and one that was given up stays as it is, with its
// communicator, until the process ends.
//
// All functions may be called by several threads. They throw what oneCCL throws (a std::exception), and
// std::invalid_argument for a number that nothing has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace accel::oneccl {

// Where the ranks of a communicator meet: one of them makes it, all are told.
using Address = std::array<char, 256>;

enum class DataType { int8, uint8, int32, int64, float16, float32, float64, bfloat16 };
enum class Reduction { sum, product, min, max };

// Host memory of `count` elements, borrowed until the collective has finished.
struct Buffer {
  void* data;
  std::size_t count;
  DataType type;
};

// A new meeting place, kept by this process until it ends.
Address make_address();

// Meets the other ranks, and returns the communicator's number. How long that may take CCL_KVS_GET_TIMEOUT says.
std::int64_t connect(int size, int rank, const Address& address);

// Frees a communicator; does nothing for one on which a collective was given up.
void disconnect(std::int64_t communicator);

// Each starts a collective and returns its number, which wait() is to be asked for until it says true. With a `match_id`
// the plan of the collective is kept for the next of that name, which must be of the same size and type.
std::int64_t start_all_reduce(std::int64_t communicator, const Buffer& buffer, Reduction reduction,
                              const std::string& match_id);
std::int64_t start_broadcast(std::int64_t communicator, const Buffer& buffer, int source);
std::int64_t start_barrier(std::int64_t communicator);

// Whether the collective has finished, now or within the time; its number is then forgotten.
bool wait(std::int64_t collective, std::int64_t timeout_ms);

// Waits no more for a collective: it keeps its communicator from being freed.
void give_up(std::int64_t collective);

}  // namespace accel::oneccl
