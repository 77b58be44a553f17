// Linux native AIO, the interface behind libaio, by its system calls (Documentation: io_setup(2), io_submit(2),
// io_getevents(2)). A file that is not open with O_DIRECT is read and written inside io_submit().

#include <cerrno>

#include "kernels/aio/queue.h"

#ifdef __linux__
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

namespace accel::aio {
namespace {

// The kernel's binary interface, as in linux/aio_abi.h, whose names of older versions differ.
struct ControlBlock {
  std::uint64_t data;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  std::uint32_t key;
  std::int32_t rw_flags;
#else
  std::int32_t rw_flags;
  std::uint32_t key;
#endif
  std::uint16_t opcode;
  std::int16_t priority;
  std::uint32_t descriptor;
  std::uint64_t buffer;
  std::uint64_t size_bytes;
  std::int64_t offset;
  std::uint64_t reserved;
  std::uint32_t flags;
  std::uint32_t event_descriptor;
};
static_assert(sizeof(ControlBlock) == 64);

struct Event {
  std::uint64_t data;
  std::uint64_t block;
  std::int64_t result;
  std::int64_t result2;
};
static_assert(sizeof(Event) == 32);

struct Time {
  long seconds;
  long nanoseconds;
};

constexpr std::uint16_t kRead = 0;
constexpr std::uint16_t kWrite = 1;

class LinuxAioQueue final : public Queue {
 public:
  LinuxAioQueue(unsigned long context, int depth) : context_(context), depth_(depth), blocks_(depth), events_(depth) {
    pointers_.reserve(depth);
  }
  ~LinuxAioQueue() override { syscall(SYS_io_destroy, context_); }

  int submit(const Command* commands, int count) override {
    // The kernel copies a block before io_submit() returns, so the blocks serve again at once.
    const int room = depth_ - in_flight_;
    const int offered = count < room ? count : room;
    pointers_.clear();
    for (int i = 0; i < offered; ++i) {
      const Command& command = commands[i];
      ControlBlock& block = blocks_[static_cast<std::size_t>(i)];
      block = {};
      block.data = command.tag;
      block.opcode = command.is_write ? kWrite : kRead;
      block.descriptor = static_cast<std::uint32_t>(command.descriptor);
      block.buffer = reinterpret_cast<std::uintptr_t>(command.data);
      block.size_bytes = command.size_bytes;
      block.offset = command.offset;
      pointers_.push_back(&block);
    }
    if (offered == 0) {
      return count == 0 ? 0 : -EAGAIN;
    }
    const long taken = syscall(SYS_io_submit, context_, static_cast<long>(offered), pointers_.data());
    if (taken < 0) {
      return -errno;
    }
    in_flight_ += static_cast<int>(taken);
    return static_cast<int>(taken);
  }

  int collect(Completion* completions, int least, int most, Timeout timeout) override {
    const int asked = most < depth_ ? most : depth_;
    const std::int64_t wait_ns = timeout ? timeout->count() : 0;
    Time time{static_cast<long>(wait_ns / 1'000'000'000), static_cast<long>(wait_ns % 1'000'000'000)};
    const long taken = syscall(SYS_io_getevents, context_, static_cast<long>(least), static_cast<long>(asked),
                               events_.data(), timeout ? &time : nullptr);
    if (taken < 0) {
      return -errno;
    }
    for (long i = 0; i < taken; ++i) {
      const Event& event = events_[static_cast<std::size_t>(i)];
      completions[i] = {event.data, event.result};
    }
    in_flight_ -= static_cast<int>(taken);
    return static_cast<int>(taken);
  }

 private:
  const unsigned long context_;
  const int depth_;
  int in_flight_ = 0;
  std::vector<ControlBlock> blocks_;
  std::vector<ControlBlock*> pointers_;
  std::vector<Event> events_;
};

}  // namespace

std::unique_ptr<Queue> make_linux_aio_queue(int depth, int& error) {
  unsigned long context = 0;
  error = syscall(SYS_io_setup, depth, &context) == 0 ? 0 : errno;
  return error == 0 ? std::make_unique<LinuxAioQueue>(context, depth) : nullptr;
}

}  // namespace accel::aio
#else

namespace accel::aio {

std::unique_ptr<Queue> make_linux_aio_queue(int, int& error) {
  error = ENOSYS;
  return nullptr;
}

}  // namespace accel::aio
#endif
