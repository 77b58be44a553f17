// The ops on page-locked memory that async_io and pin_memory share. They take addresses: the Python side makes a tensor
// of the memory, and unmaps it when the tensor's storage is freed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/memory/pages.h"
#include "torch_c/op_table.h"

namespace accel::locked_pages {

inline PageRange range(std::int64_t address, std::int64_t size_bytes) {
  return {reinterpret_cast<char*>(address), static_cast<std::size_t>(size_bytes)};
}

// [address, bytes in whole pages, errno of the lock or 0]; the address is 0 where there is no memory.
inline std::vector<std::int64_t> allocate(std::int64_t size_bytes) {
  const PageRange pages = map_pages(static_cast<std::size_t>(size_bytes));
  const int error = pages.data == nullptr ? 0 : lock_pages(pages);
  return {reinterpret_cast<std::intptr_t>(pages.data), static_cast<std::int64_t>(pages.size_bytes), error};
}

inline void unlock(std::int64_t address, std::int64_t size_bytes) { unlock_pages(range(address, size_bytes)); }

inline void release(std::int64_t address, std::int64_t size_bytes) { unmap_pages(range(address, size_bytes)); }

inline const Ops ops = {
    {"allocate(int size_bytes) -> int[]", ACCEL_BOX(&allocate)},
    {"unlock(int address, int size_bytes) -> ()", ACCEL_BOX(&unlock)},
    {"release(int address, int size_bytes) -> ()", ACCEL_BOX(&release)},
};

}  // namespace accel::locked_pages
