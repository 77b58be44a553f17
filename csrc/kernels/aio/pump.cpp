#include "kernels/aio/pump.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <unistd.h>

#include "kernels/aio/retry.h"

namespace accel::aio {
namespace {

constexpr std::int64_t kMostCommandBytes = 1 << 30;  // the kernel does no more than some bytes below 2 GiB at a time
// Large enough for a device's full speed, small enough to stay in a core's cache between copy and transfer.
constexpr std::int64_t kMostBounceBytes = 1 << 20;
constexpr std::int64_t kBouncesBytes = 16 << 20;

void raise_to(std::atomic<std::int64_t>& most, std::int64_t value) {
  std::int64_t seen = most.load(std::memory_order_relaxed);
  while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

void add(std::atomic<std::int64_t>& counter, std::int64_t value) {
  counter.fetch_add(value, std::memory_order_relaxed);
}

bool is_aligned(const char* address, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0;
}

// Bytes, or -errno.
std::int64_t transfer_now(const Command& command) {
  const ssize_t done = command.is_write
                           ? pwrite(command.descriptor, command.data, command.size_bytes, command.offset)
                           : pread(command.descriptor, command.data, command.size_bytes, command.offset);
  return done < 0 ? -errno : done;
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

bool Inbox::take(Share& share) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return is_closed_ || !shares_.empty(); });
  return pop(share);
}

bool Inbox::take_before(Share& share, Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return !shares_.empty(); });
  return pop(share);
}

bool Inbox::take_now(Share& share) {
  const std::lock_guard<std::mutex> lock(mutex_);
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

Pump::Pump(Queue& queue, const Settings& settings, Inbox& inbox, Finisher& finisher, Counters& counters)
    : queue_(queue), settings_(settings), inbox_(inbox), finisher_(finisher), counters_(counters),
      slots_(static_cast<std::size_t>(settings.depth)), completions_(static_cast<std::size_t>(settings.depth)) {
  for (std::uint64_t tag = slots_.size(); tag > 0; --tag) {
    free_slots_.push_back(tag - 1);
  }
}

void Pump::run() {
  for (;;) {
    stage_due();
    if (settings_.overlap_events || in_flight_ == 0) {
      fill();
    }
    if (in_flight_ > 0 || !staged_.empty()) {
      hand_over();
      if (in_flight_ > 0) {
        collect();
      }
    } else if (!await_work()) {
      return;
    }
  }
}

// Where nothing is in flight and fill() found nothing to begin: waits for a share, or until a command may begin again.
// False when nothing will ever come.
bool Pump::await_work() {
  if (delayed_.empty()) {
    return inbox_.take(share_);  // the last one is cut: with nothing in flight it had all slots and buffers
  }
  const Clock::time_point due = next_due();
  if (share_.begin < share_.end || free_slots_.empty()) {
    std::this_thread::sleep_until(due);  // those that wait have all slots, or all bounce buffers
  } else {
    inbox_.take_before(share_, due);
  }
  return true;
}

// When the first of those that wait may begin again: there is one.
Clock::time_point Pump::next_due() const {
  const auto is_earlier = [](const Delayed& one, const Delayed& other) { return one.due < other.due; };
  return std::min_element(delayed_.begin(), delayed_.end(), is_earlier)->due;
}

// Commands whose time to begin again has come, or that need not because their operation has failed meanwhile.
void Pump::stage_due() {
  if (delayed_.empty()) {
    return;
  }
  const Clock::time_point now = Clock::now();
  std::size_t kept = 0;
  for (const Delayed& delayed : delayed_) {
    Slot& slot = slots_[delayed.tag];
    if (slot.operation->has_failed()) {
      release(slot);
    } else if (delayed.due <= now) {
      staged_.push_back(slot.command);
    } else {
      delayed_[kept++] = delayed;
    }
  }
  delayed_.resize(kept);
}

// Commands for all free slots, as far as there are shares.
void Pump::fill() {
  while (!free_slots_.empty()) {
    if (share_.begin == share_.end && !inbox_.take_now(share_)) {
      return;
    }
    if (share_.begin < share_.end && share_.operation->has_failed()) {
      const std::int64_t rest = share_.end - share_.begin;
      share_.begin = share_.end;
      settle(*share_.operation, rest);
    } else if (share_.begin < share_.end && !stage_next()) {
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
  std::int64_t size = std::min({share_.end - offset, settings_.block_bytes, kMostCommandBytes});
  int descriptor = file.cached();
  char* bounce = nullptr;
  if (file.has_direct() && offset < file.body_begin()) {
    size = std::min(size, file.body_begin() - offset);
  } else if (file.has_direct() && offset < file.body_end()) {
    descriptor = file.direct();
    const std::int64_t unit = file.offset_alignment();
    size = std::min(std::max(size / unit * unit, unit), file.body_end() - offset);
    if (!is_aligned(memory, file.memory_alignment())) {
      if (unit > bounce_bytes()) {
        descriptor = operation.file.plain();  // blocks as large as that are not met
      } else {
        bounce = take_bounce();
        if (bounce == nullptr && bounces_.data() != nullptr) {
          return false;
        }
        if (bounce == nullptr) {
          descriptor = operation.file.plain();  // there is no memory
        } else {
          size = std::min(size, bounce_bytes() / unit * unit);
          if (request.is_write) {
            std::memcpy(bounce, memory, static_cast<std::size_t>(size));
          }
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

void Pump::hand_over() {
  std::size_t first = 0;
  const bool has_earlier = in_flight_ > 0;
  while (first < staged_.size()) {
    const int count = settings_.single_submit ? 1 : static_cast<int>(staged_.size() - first);
    const int taken = queue_.submit(staged_.data() + first, count);
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
    if ((error == EAGAIN || error == EBUSY) && in_flight_ > 0) {
      break;  // there is room when something is complete
    }
    const Completion refused{staged_[first].tag, -error};
    staged_.erase(staged_.begin(), staged_.begin() + static_cast<std::ptrdiff_t>(first) + 1);
    first = 0;
    complete(refused);
  }
  staged_.erase(staged_.begin(), staged_.begin() + static_cast<std::ptrdiff_t>(first));
}

// Waits for what is in flight: for one command, or until one may begin again; without `overlap_events` for all.
void Pump::collect() {
  int missing = settings_.overlap_events ? 1 : in_flight_;
  Timeout timeout;
  if (settings_.overlap_events && !delayed_.empty()) {
    timeout = std::max<Clock::duration>(next_due() - Clock::now(), Clock::duration::zero());
  }
  while (missing > 0) {
    const int taken = queue_.collect(completions_.data(), missing, static_cast<int>(completions_.size()), timeout);
    if (taken == 0 && timeout) {
      return;
    }
    if (taken < 0) {
      // The memory belongs to the kernel until it says otherwise: there is nothing to do but to ask again.
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
    result = transfer_now(command);  // a file that the engine cannot do: some devices know plain calls alone
  }
  if (result < 0) {
    if (begin_again(completion.tag, static_cast<int>(-result))) {
      return;
    }
    operation.fail({FailureKind::system_call, static_cast<int>(-result), command.offset});
  } else if (result == 0) {
    if (command.is_write) {
      if (begin_again(completion.tag, EAGAIN)) {
        return;
      }
      operation.fail({FailureKind::system_call, EIO, command.offset});
    } else {
      operation.fail({FailureKind::end_of_file, 0, command.offset});
    }
  } else {
    const auto done = static_cast<std::uint32_t>(std::min<std::int64_t>(result, command.size_bytes));
    if (slot.bounce != nullptr && !command.is_write) {
      std::memcpy(slot.memory, command.data, done);
    }
    operation.add_done(done);
    const bool is_direct = operation.file.is_direct(command.descriptor);
    add(is_direct ? counters_.direct_bytes : counters_.cached_bytes, done);
    add(counters_.bounced_bytes, is_direct && slot.bounce != nullptr ? done : 0);
    if (done < command.size_bytes) {
      command.data += done;
      slot.memory += done;
      command.offset += done;
      command.size_bytes -= done;
      slot.attempts = 0;
      if (operation.file.has_direct() && command.offset % operation.file.offset_alignment() != 0) {
        command.descriptor = operation.file.plain();
      }
      add(counters_.retries, 1);
      staged_.push_back(command);
      return;
    }
  }
  release(slot);
}

// Whether a command that failed with `error` is tried again: at once, or after a pause in which the others go on.
bool Pump::begin_again(std::uint64_t tag, int error) {
  Slot& slot = slots_[tag];
  Operation& operation = *slot.operation;
  if (error == EINVAL && operation.file.has_direct() && !slot.is_plain) {
    // A file system that takes the flag and refuses the commands, or their alignment.
    slot.command.descriptor = operation.file.plain();
    slot.is_plain = true;
  } else if (error != EINTR && error != EAGAIN && error != EBUSY) {
    return false;
  }
  if (++slot.attempts >= kMostAttempts || operation.has_failed()) {
    return false;
  }
  add(counters_.retries, 1);
  if (error == EAGAIN || error == EBUSY) {
    delayed_.push_back({Clock::now() + pause_before(slot.attempts), tag});
  } else {
    staged_.push_back(slot.command);
  }
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
    finisher_.finish(operation);
  }
}

std::int64_t Pump::bounce_bytes() const {
  const std::int64_t page = page_bytes();
  return std::max(std::min(settings_.block_bytes, kMostBounceBytes) / page * page, 16 * page);
}

// Null where all are in use, or there is no memory for any.
char* Pump::take_bounce() {
  if (bounces_.data() == nullptr) {
    const std::int64_t count = std::min<std::int64_t>(kBouncesBytes / bounce_bytes(), settings_.depth);
    bounces_ = Pages(static_cast<std::size_t>(count * bounce_bytes()));
    for (std::int64_t i = 0; i < count && bounces_.data() != nullptr; ++i) {
      free_bounces_.push_back(bounces_.data() + i * bounce_bytes());
    }
  }
  if (free_bounces_.empty()) {
    return nullptr;
  }
  char* const bounce = free_bounces_.back();
  free_bounces_.pop_back();
  return bounce;
}

}  // namespace accel::aio
