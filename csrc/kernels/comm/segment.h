// Memory that processes share through a file descriptor. It has no name that other programs could open, and is freed
// with the last process that uses it, however that ends.
#pragma once

#include <cstdint>
#include <utility>

namespace accel::comm {

// Returns the descriptor of `bytes` zeros: reserved, so that no access can fail later, and sealed, so that no process
// can truncate it. From 2 MiB on it requests large pages. On failure returns -1 and sets `error` to an errno.
int create_segment(std::int64_t bytes, int& error);

// Whether the descriptor refers to such memory of at least `bytes`.
bool is_sealed_segment(int descriptor, std::int64_t bytes);

// A segment mapped into this process. Does not own the descriptor.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int descriptor, std::int64_t bytes, int& error);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  char* data() const { return data_; }
  std::int64_t size_bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace accel::comm
