#include "kernels/aio/pump.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace accel::aio {
namespace {

constexpr std::int64_t kMaxCommandBytes = 1 << 30;  // the kernel moves slightly less than 2 GiB at a time
// Large enough for a device's full speed, small enough to stay in a core's cache between copy and transfer.
constexpr std::int64_t kMaxBounceBytes = 1 << 20;
constexpr std::int64_t kAllBounceBytes = 16 << 20;

// At least the largest alignment that File accepts.
std::int64_t bounce_size(const Settings& settings) {
  const std::int64_t bytes = std::min(settings.block_bytes, kMaxBounceBytes) / page_bytes() * page_bytes();
  return std::max(bytes, File::max_alignment());
}

void raise_to(std::atomic<std::int64_t>& most, std::int64_t value) {
  std::int64_t seen = most.load(std::memory_order_relaxed);
  while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

void add(std::atomic<std::int64_t>& counter, std::int64_t value) {
  counter.fetch_add(value, std::memory_order_relaxed);
}

}  // namespace

void Inbox::put(const Share& share) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    shares_.push_back(share);
  }
  changed_.notify_one();
}

void Inbox::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

bool Inbox::take_now(Share& share) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pop(share);
}

bool Inbox::take(Share& share) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return is_closed_ || !shares_.empty(); });
  return pop(share);
}

bool Inbox::pop(Share& share) {
  if (shares_.empty()) {
    return false;
  }
  share = shares_.front();
  shares_.pop_front();
  return true;
}

Pump::Pump(std::unique_ptr<Queue> queue, const Settings& settings, Inbox& inbox, Finish finish, Counters& counters)
    : queue_(std::move(queue)),
      settings_(settings),
      inbox_(inbox),
      finish_(std::move(finish)),
      counters_(counters),
      slots_(static_cast<std::size_t>(settings.depth)),
      completions_(static_cast<std::size_t>(settings.depth)),
      bounce_bytes_(bounce_size(settings)),
      bounces_(static_cast<std::size_t>(std::min<std::int64_t>(kAllBounceBytes / bounce_bytes_, settings.depth) *
                                        bounce_bytes_)) {
  for (std::uint64_t tag = slots_.size(); tag > 0; --tag) {
    free_slots_.push_back(tag - 1);
  }
  const auto all_bytes = static_cast<std::int64_t>(bounces_.size_bytes());
  for (std::int64_t at = 0; at + bounce_bytes_ <= all_bytes; at += bounce_bytes_) {
    free_bounces_.push_back(bounces_.data() + at);
  }
}

void Pump::run() {
  for (;;) {
    if (settings_.overlap_events || in_flight_ == 0) {
      fill();
    }
    if (in_flight_ > 0 || !staged_.empty()) {
      submit();
      if (in_flight_ > 0) {
        collect();
      }
    } else if (!inbox_.take(share_)) {
      return;
    }
  }
}

// Stages commands for all free slots, as long as there are shares.
void Pump::fill() {
  while (!free_slots_.empty()) {
    if (share_.begin == share_.end && !inbox_.take_now(share_)) {
      return;
    }
    if (share_.operation->has_failed()) {
      const std::int64_t rest = share_.end - share_.begin;
      share_.begin = share_.end;
      settle(*share_.operation, rest);
    } else if (!stage_next()) {
      return;
    }
  }
}

// Cuts the next command off the share. False where it must wait for a bounce buffer.
bool Pump::stage_next() {
  Operation& operation = *share_.operation;
  const File& file = operation.file;
  const Request& request = operation.request;
  const std::int64_t offset = share_.begin;
  char* const memory = request.data + (offset - request.offset);
  std::int64_t size = std::min({share_.end - offset, settings_.block_bytes, kMaxCommandBytes});
  int descriptor = file.cached();
  char* bounce = nullptr;
  if (file.has_direct() && offset < file.body_begin()) {
    size = std::min(size, file.body_begin() - offset);
  } else if (file.has_direct() && offset < file.body_end()) {
    const std::int64_t unit = file.offset_alignment();
    size = std::min(std::max(size / unit * unit, unit), file.body_end() - offset);
    descriptor = file.direct();
    if (reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(file.memory_alignment()) != 0) {
      if (bounces_.data() == nullptr) {
        descriptor = file.cached();
      } else if (free_bounces_.empty()) {
        return false;
      } else {
        bounce = free_bounces_.back();
        free_bounces_.pop_back();
        size = std::min(size, bounce_bytes_ / unit * unit);
        if (request.is_write) {
          std::memcpy(bounce, memory, static_cast<std::size_t>(size));
        }
      }
    }
  }
  const std::uint64_t tag = free_slots_.back();
  free_slots_.pop_back();
  char* const data = bounce == nullptr ? memory : bounce;
  const Command command{descriptor, request.is_write, data, static_cast<std::uint32_t>(size), offset, tag};
  slots_[tag] = {&operation, command, memory, bounce, size, 0, false};
  staged_.push_back(command);
  share_.begin += size;
  return true;
}

void Pump::submit() {
  const bool has_earlier = in_flight_ > 0;
  std::size_t first = 0;
  const auto drop_taken = [&] {
    staged_.erase(staged_.begin(), staged_.begin() + static_cast<std::ptrdiff_t>(first));
    first = 0;
  };
  while (first < staged_.size()) {
    std::this_thread::sleep_for(std::exchange(pause_, {}));
    const int count = settings_.single_submit ? 1 : static_cast<int>(staged_.size() - first);
    const int taken = queue_->submit(staged_.data() + first, count);
    add(counters_.submissions, 1);
    if (taken > 0) {
      first += static_cast<std::size_t>(taken);
      in_flight_ += taken;
      add(counters_.commands, taken);
      add(counters_.overlapped, has_earlier ? 1 : 0);
      raise_to(counters_.most_in_flight, in_flight_);
      continue;
    }
    const int error = taken == 0 ? EAGAIN : -taken;
    if (error == EAGAIN || error == EBUSY) {
      if (in_flight_ > 0) {
        break;  // there is room once the commands in flight have completed
      }
      drop_taken();
      const std::vector<Command> refused = std::exchange(staged_, {});
      // In reverse, so that a command that alone is refused does not stay before the others.
      std::for_each(refused.rbegin(), refused.rend(), [&](const Command& each) { complete({each.tag, -error}); });
      continue;
    }
    const Completion refused{staged_[first].tag, -error};
    ++first;
    drop_taken();
    complete(refused);
  }
  drop_taken();
}

// Waits for one command; without `overlap_events`, for all commands in flight.
void Pump::collect() {
  int missing = settings_.overlap_events ? 1 : in_flight_;
  while (missing > 0) {
    const int taken = queue_->collect(completions_.data(), missing, static_cast<int>(completions_.size()));
    if (taken < 0) {
      // The kernel may still access the memory, so try again.
      if (-taken != EINTR) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      continue;
    }
    in_flight_ -= taken;
    missing -= taken;
    for (int i = 0; i < taken; ++i) {
      complete(completions_[static_cast<std::size_t>(i)]);
    }
  }
}

void Pump::complete(const Completion& completion) {
  Slot& slot = slots_[completion.tag];
  Operation& operation = *slot.operation;
  Command& command = slot.command;
  std::int64_t result = completion.result;
  if (result == -EINVAL && (slot.is_plain || !operation.file.has_direct())) {
    result = run_now(command);  // some devices support plain calls only
  }
  if (result <= 0) {
    // A write of nothing has no errno: try again, then call it an I/O error.
    const bool is_end = result == 0 && !command.is_write;
    if (!is_end && retry(completion.tag, result == 0 ? EAGAIN : static_cast<int>(-result))) {
      return;
    }
    const int error = is_end ? 0 : result == 0 ? EIO : static_cast<int>(-result);
    operation.fail({is_end ? FailureKind::end_of_file : FailureKind::system_call, error, command.offset});
    release(slot);
    return;
  }
  const auto done = static_cast<std::uint32_t>(std::min<std::int64_t>(result, command.size_bytes));
  if (slot.bounce != nullptr && !command.is_write) {
    std::memcpy(slot.memory, command.data, done);
  }
  operation.add_done(done);
  const bool is_direct = command.descriptor == operation.file.direct();
  add(is_direct ? counters_.direct_bytes : counters_.cached_bytes, done);
  add(counters_.bounced_bytes, is_direct && slot.bounce != nullptr ? done : 0);
  if (done == command.size_bytes) {
    release(slot);
    return;
  }
  command.data += done;
  slot.memory += done;
  command.offset += done;
  command.size_bytes -= done;
  slot.attempts = 0;
  if (operation.file.has_direct() && command.offset % operation.file.offset_alignment() != 0) {
    command.descriptor = operation.file.cached();
  }
  add(counters_.retries, 1);
  staged_.push_back(command);
}

// Restarts a command that failed with `error`, at once or after a pause, where that may help; false where not.
bool Pump::retry(std::uint64_t tag, int error) {
  Slot& slot = slots_[tag];
  const File& file = slot.operation->file;
  const bool waits = error == EAGAIN || error == EBUSY;
  if (error == EINVAL && file.has_direct() && !slot.is_plain) {
    // The file system accepts O_DIRECT but not the commands, or not their alignment.
    slot.command.descriptor = file.cached();
    slot.is_plain = true;
  } else if (error != EINTR && !waits) {
    return false;
  }
  if (++slot.attempts >= kMaxAttempts || slot.operation->has_failed()) {
    return false;
  }
  add(counters_.retries, 1);
  if (waits) {
    pause_ = std::max(pause_, retry_delay(slot.attempts));  // one for all that were refused together
  }
  staged_.push_back(slot.command);
  return true;
}

void Pump::release(Slot& slot) {
  if (slot.bounce != nullptr) {
    free_bounces_.push_back(slot.bounce);
  }
  free_slots_.push_back(slot.command.tag);
  settle(*slot.operation, slot.share_bytes);
}

void Pump::settle(Operation& operation, std::int64_t bytes) {
  if (operation.settle(bytes)) {
    finish_(operation);
  }
}

}  // namespace accel::aio
