#include "kernels/comm/group.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace accel::comm {

std::vector<Mapping> Group::mapped(const std::vector<int>& descriptors, std::int64_t bytes, int& error) {
  std::vector<Mapping> mappings;
  mappings.reserve(descriptors.size());
  for (const int descriptor : descriptors) {
    if (error == 0 && !is_sealed_segment(descriptor, bytes)) {
      error = EBADF;
    }
    if (error == 0) {
      mappings.emplace_back(descriptor, bytes, error);
    }
  }
  if (error != 0) {  // of the right length, so that nothing reads beyond it
    mappings.clear();
    mappings.resize(descriptors.size());
  }
  return mappings;
}

std::vector<char*> Group::bytes_of(const std::vector<Mapping>& mappings) {
  std::vector<char*> bytes;
  for (const Mapping& mapping : mappings) {
    bytes.push_back(mapping.data());
  }
  return bytes;
}

Group::Group(const GroupSettings& settings, std::vector<int> descriptors, std::vector<bool> is_here, int& error)
    : settings_(settings),
      descriptors_(std::move(descriptors)),
      is_here_(std::move(is_here)),
      mappings_(mapped(descriptors_, SlotLayout{settings.tuning.slot_bytes}.segment_bytes(), error)),
      phases_(settings.rank, bytes_of(mappings_), settings.patience, *this),
      collectives_(phases_, bytes_of(mappings_), settings.tuning, settings.isa) {
  has_left_ = error != 0;
}

Group::~Group() {
  for (const int descriptor : descriptors_) {
    close(descriptor);
  }
}

bool Group::is_alive(int rank) {
  if (is_here_[static_cast<std::size_t>(rank)]) {
    return true;
  }
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = 0;
  lock.l_len = 1;
  // If the check itself fails, the rank counts as alive.
  return fcntl(descriptors_[static_cast<std::size_t>(rank)], F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool Group::is_ready() {
  if (has_left_) {
    last_failure_ = {Failure::Kind::left, rank(), -1, 0};
    return false;
  }
  if (is_running_) {
    last_failure_ = {Failure::Kind::busy, rank(), -1, 0};
    return false;
  }
  if (has_removals_) {
    const Lock lock(removals_mutex_);
    for (const void* base : removals_) {
      collectives_.remove_symmetric(base);
    }
    removals_.clear();
    has_removals_ = false;
  }
  return !is_broken_;
}

void Group::note_failure() {
  last_failure_ = phases_.failure();
  if (last_failure_.kind == Failure::Kind::mismatch) {
    return;  // all ranks noticed it, and nothing was written
  }
  is_broken_ = true;
  if (last_failure_.kind == Failure::Kind::interrupted && has_left_) {
    last_failure_ = {Failure::Kind::left, rank(), -1, last_failure_.waited_ns};
    return;  // leave() announced it to the others
  }
  int culprit = last_failure_.rank;
  if (last_failure_.kind == Failure::Kind::gave_up) {
    culprit = last_failure_.culprit;
  } else if (last_failure_.kind == Failure::Kind::interrupted) {
    culprit = rank();
  }
  phases_.leave(kGaveUp + static_cast<std::uint32_t>(culprit));
}

Failure Group::last_failure() {
  const Lock lock(mutex_);
  return last_failure_;
}

void Group::leave() {
  if (!has_left_.exchange(true)) {
    phases_.leave(kLeft);
  }
}

std::shared_ptr<const Symmetric> Group::add_symmetric(std::uint64_t id, const std::vector<int>& descriptors,
                                                      std::int64_t bytes, int& error) {
  auto mappings = mapped(descriptors, bytes, error);
  if (error != 0) {
    return nullptr;
  }
  const Lock lock(mutex_);
  auto bases = bytes_of(mappings);
  auto memory = std::make_shared<const Symmetric>(Symmetric{id, rank(), bytes, std::move(bases), std::move(mappings)});
  collectives_.add_symmetric(memory);
  return memory;
}

void Group::remove_symmetric(const void* base) {
  const Lock lock(removals_mutex_);
  removals_.push_back(base);
  has_removals_ = true;
}

}  // namespace accel::comm
