// Memory that processes share through a file descriptor: it has no name that anybody could open, and goes with the last
// process that uses it, however that ends.
#pragma once

#include <cstdint>
#include <utility>

namespace accel::comm {

// The descriptor of `bytes` zeros: reserved, so that no access can fail later, and sealed, so
// that nobody can take them away again. Large pages are asked for from 2 MiB on. On failure -1, with the reason in
// `error`.
int create_segment(std::int64_t bytes, int& error);

// Whether the descriptor is of such memory, of at least `bytes`.
bool is_sealed_segment(int descriptor, std::int64_t bytes);

// A segment in this process's memory. Does not keep the descriptor.
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
