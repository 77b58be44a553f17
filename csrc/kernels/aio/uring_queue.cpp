// io_uring through its system calls (io_uring_setup(2), io_uring_enter(2)): two rings shared with the kernel, one of
// commands to start and one of completions.

#include <cerrno>

#include "kernels/aio/queue.h"

#ifdef __linux__
#include <algorithm>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// The same on all architectures but alpha; older C libraries do not define them.
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif
#ifndef SYS_io_uring_enter
#define SYS_io_uring_enter 426
#endif

namespace accel::aio {
namespace {

// The kernel's binary interface, as in linux/io_uring.h, which older systems lack or have without newer flags.
struct SubmissionEntry {
  std::uint8_t opcode;
  std::uint8_t flags;
  std::uint16_t priority;
  std::int32_t descriptor;
  std::uint64_t offset;
  std::uint64_t address;
  std::uint32_t size_bytes;
  std::uint32_t rw_flags;
  std::uint64_t data;
  std::uint64_t reserved[3];
};
static_assert(sizeof(SubmissionEntry) == 64);

struct CompletionEntry {
  std::uint64_t data;
  std::int32_t result;
  std::uint32_t flags;
};
static_assert(sizeof(CompletionEntry) == 16);

struct SubmissionOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, reserved;
  std::uint64_t address;
};

struct CompletionOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, overflow, entries, flags, reserved;
  std::uint64_t address;
};

struct Parameters {
  std::uint32_t submission_entries, completion_entries, flags, thread_cpu, thread_idle_ms, features, work_queue;
  std::uint32_t reserved[3];
  SubmissionOffsets submission;
  CompletionOffsets completion;
};
static_assert(sizeof(Parameters) == 120);

constexpr std::uint8_t kRead = 22;  // with an address and no vector: Linux 5.6
constexpr std::uint8_t kWrite = 23;
constexpr std::uint32_t kEnterGetEvents = 1u << 0;
constexpr std::uint32_t kSetupSingleIssuer = 1u << 12;
constexpr std::uint32_t kSetupDeferTaskRun = 1u << 13;
constexpr std::uint32_t kFeatureSingleMap = 1u << 0;
constexpr std::uint32_t kFeatureReadWriteCurrentPosition = 1u << 3;  // came with kRead and kWrite
constexpr off_t kOffsetOfRings = 0;
constexpr off_t kOffsetOfEntries = 0x10000000;

int enter(int ring, unsigned submitted, unsigned least, unsigned flags) {
  const long taken = syscall(SYS_io_uring_enter, ring, submitted, least, flags, nullptr, std::size_t{0});
  return taken < 0 ? -errno : static_cast<int>(taken);
}

class UringQueue final : public Queue {
 public:
  UringQueue(int ring, const Parameters& parameters) : ring_(ring), parameters_(parameters) {}

  ~UringQueue() override {
    if (rings_ != MAP_FAILED) {
      munmap(rings_, rings_bytes());
    }
    if (entries_ != MAP_FAILED) {
      munmap(entries_, entries_bytes());
    }
    close(ring_);
  }

  // Returns 0 or an errno.
  int map() {
    const int protection = PROT_READ | PROT_WRITE;
    rings_ = mmap(nullptr, rings_bytes(), protection, MAP_SHARED | MAP_POPULATE, ring_, kOffsetOfRings);
    if (rings_ == MAP_FAILED) {
      return errno;
    }
    entries_ = mmap(nullptr, entries_bytes(), protection, MAP_SHARED | MAP_POPULATE, ring_, kOffsetOfEntries);
    if (entries_ == MAP_FAILED) {
      return errno;
    }
    const auto at = [&](std::uint32_t offset) {
      return reinterpret_cast<std::uint32_t*>(static_cast<char*>(rings_) + offset);
    };
    submission_tail_ = at(parameters_.submission.tail);
    submission_mask_ = *at(parameters_.submission.ring_mask);
    completion_head_ = at(parameters_.completion.head);
    completion_tail_ = at(parameters_.completion.tail);
    completion_mask_ = *at(parameters_.completion.ring_mask);
    completions_ = reinterpret_cast<CompletionEntry*>(at(parameters_.completion.entries));
    std::uint32_t* const order = at(parameters_.submission.array);
    for (std::uint32_t i = 0; i <= submission_mask_; ++i) {
      order[i] = i;  // entries are used in the ring's own order
    }
    return 0;
  }

  int submit(const Command* commands, int count) override {
    const std::uint32_t tail = *submission_tail_;  // only this thread writes it
    auto* const entries = static_cast<SubmissionEntry*>(entries_);
    for (int i = 0; i < count; ++i) {
      const Command& command = commands[i];
      SubmissionEntry& entry = entries[(tail + static_cast<std::uint32_t>(i)) & submission_mask_];
      entry = {};
      entry.opcode = command.is_write ? kWrite : kRead;
      entry.descriptor = command.descriptor;
      entry.offset = static_cast<std::uint64_t>(command.offset);
      entry.address = reinterpret_cast<std::uintptr_t>(command.data);
      entry.size_bytes = command.size_bytes;
      entry.data = command.tag;
    }
    __atomic_store_n(submission_tail_, tail + static_cast<std::uint32_t>(count), __ATOMIC_RELEASE);
    const int taken = enter(ring_, static_cast<unsigned>(count), 0, 0);
    // The caller offers again what the kernel did not take, so it must not stay in the ring.
    const int started = std::max(taken, 0);
    if (started < count) {
      __atomic_store_n(submission_tail_, tail + static_cast<std::uint32_t>(started), __ATOMIC_RELEASE);
    }
    return taken == 0 ? -EAGAIN : taken;
  }

  int collect(Completion* completions, int least, int most) override {
    int taken = take(completions, most);
    if (taken < least) {
      // It waits for completions in the ring; those taken already are no longer there.
      const int error = enter(ring_, 0, static_cast<unsigned>(least - taken), kEnterGetEvents);
      taken += take(completions + taken, most - taken);
      if (taken == 0 && error < 0) {
        return error;
      }
    }
    return taken;
  }

 private:
  std::size_t rings_bytes() const {
    const Parameters& p = parameters_;
    return std::max(p.submission.array + p.submission_entries * sizeof(std::uint32_t),
                    p.completion.entries + p.completion_entries * sizeof(CompletionEntry));
  }
  std::size_t entries_bytes() const { return parameters_.submission_entries * sizeof(SubmissionEntry); }

  int take(Completion* completions, int most) {
    std::uint32_t head = *completion_head_;  // only this thread writes it
    const std::uint32_t tail = __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE);
    int taken = 0;
    for (; taken < most && head != tail; ++taken, ++head) {
      const CompletionEntry& entry = completions_[head & completion_mask_];
      completions[taken] = {entry.data, entry.result};
    }
    __atomic_store_n(completion_head_, head, __ATOMIC_RELEASE);
    return taken;
  }

  const int ring_;
  const Parameters parameters_;
  void* rings_ = MAP_FAILED;
  void* entries_ = MAP_FAILED;
  std::uint32_t* submission_tail_ = nullptr;
  std::uint32_t submission_mask_ = 0;
  std::uint32_t* completion_head_ = nullptr;
  std::uint32_t* completion_tail_ = nullptr;
  std::uint32_t completion_mask_ = 0;
  CompletionEntry* completions_ = nullptr;
};

}  // namespace

std::unique_ptr<Queue> make_uring_queue(int depth, int& error) {
  // One thread uses the ring, and completions are processed when it asks. Needs Linux 6.1; older kernels refuse.
  Parameters parameters{};
  parameters.flags = kSetupSingleIssuer | kSetupDeferTaskRun;
  long ring = syscall(SYS_io_uring_setup, depth, &parameters);
  if (ring < 0 && errno == EINVAL) {
    parameters = {};
    ring = syscall(SYS_io_uring_setup, depth, &parameters);
  }
  if (ring < 0) {
    error = errno;
    return nullptr;
  }
  constexpr std::uint32_t needed = kFeatureSingleMap | kFeatureReadWriteCurrentPosition;
  if ((parameters.features & needed) != needed) {
    close(static_cast<int>(ring));
    error = ENOSYS;
    return nullptr;
  }
  auto queue = std::make_unique<UringQueue>(static_cast<int>(ring), parameters);
  error = queue->map();
  return error == 0 ? std::move(queue) : nullptr;
}

}  // namespace accel::aio
#else

namespace accel::aio {

std::unique_ptr<Queue> make_uring_queue(int, int& error) {
  error = ENOSYS;
  return nullptr;
}

}  // namespace accel::aio
#endif
