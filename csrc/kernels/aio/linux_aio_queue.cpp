// Linux native AIO (the interface behind libaio) through its system calls: io_setup(2), io_submit(2), io_getevents(2).
// A file that is not open with O_DIRECT is read and written inside io_submit().

#include <cerrno>

#include "kernels/aio/queue.h"

#ifdef __linux__
#include <vector>

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace accel::aio {
namespace {

class LinuxAioQueue final : public Queue {
 public:
  LinuxAioQueue(unsigned long context, int depth) : context_(context), blocks_(depth), events_(depth) {
    for (iocb& block : blocks_) {
      pointers_.push_back(&block);
    }
  }
  ~LinuxAioQueue() override { syscall(SYS_io_destroy, context_); }

  int submit(const Command* commands, int count) override {
    for (int i = 0; i < count; ++i) {
      const Command& command = commands[i];
      iocb& block = blocks_[static_cast<std::size_t>(i)];  // io_submit() copies it, so it can be reused at once
      block = {};
      block.aio_data = command.tag;
      block.aio_lio_opcode = command.is_write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
      block.aio_fildes = static_cast<std::uint32_t>(command.descriptor);
      block.aio_buf = reinterpret_cast<std::uintptr_t>(command.data);
      block.aio_nbytes = command.size_bytes;
      block.aio_offset = command.offset;
    }
    const long taken = syscall(SYS_io_submit, context_, static_cast<long>(count), pointers_.data());
    return taken < 0 ? -errno : static_cast<int>(taken);
  }

  int collect(Completion* completions, int least, int most) override {
    const long taken =
        syscall(SYS_io_getevents, context_, static_cast<long>(least), static_cast<long>(most), events_.data(), nullptr);
    if (taken < 0) {
      return -errno;
    }
    for (long i = 0; i < taken; ++i) {
      const io_event& event = events_[static_cast<std::size_t>(i)];
      completions[i] = {event.data, event.res};
    }
    return static_cast<int>(taken);
  }

 private:
  const unsigned long context_;
  std::vector<iocb> blocks_;
  std::vector<iocb*> pointers_;
  std::vector<io_event> events_;
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
