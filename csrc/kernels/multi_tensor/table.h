// How the tensors of one call become tables that fit into a launch's own parameters, on any kind of device. Plain
// C++, so that it is tested on the host; kernels call the very same functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "common/host_device.h"

namespace accel::multi_tensor {

constexpr std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t unit) { return ceil_divide(a, unit) * unit; }

// What a launch may be given; kPointers arrays of addresses for each tensor.
template <int kPointers>
constexpr std::size_t kBytesPerTensor = kPointers * sizeof(void*) + sizeof(std::int64_t) + sizeof(std::uint32_t);

template <int kPointers, int kTensors>
struct BoundedTable {
  static constexpr int kCapacity = kTensors;

  void* pointers[kPointers][kCapacity];
  std::int64_t numel[kCapacity];
  std::uint32_t first_chunk[kCapacity + 1];  // tensor i has the chunks [first_chunk[i], first_chunk[i + 1])
  std::int32_t count;
  std::int32_t chunk_elements;

  ACCEL_HOST_DEVICE std::uint32_t chunks() const { return first_chunk[count]; }
};

// Numbers the chunks of a table whose `count` and `numel` are set.
template <class Table>
void number_chunks(Table& table, std::int32_t chunk_elements) {
  table.chunk_elements = chunk_elements;
  table.first_chunk[0] = 0;
  for (int i = 0; i < table.count; ++i) {
    table.first_chunk[i + 1] =
        table.first_chunk[i] + static_cast<std::uint32_t>(ceil_divide(table.numel[i], chunk_elements));
  }
}

// Types of a tensor's arrays, and a number for each of the 18 combinations.
struct StoredTypes {
  DType param;
  DType grad;
  bool states_as_param;  // else float32
};

constexpr int kTypeCodes = 18;
inline int type_code(const StoredTypes& types) {
  const bool as_param = types.states_as_param && types.param != DType::float32;  // for float32 they are the same
  return (static_cast<int>(types.param) * 3 + static_cast<int>(types.grad)) * 2 + (as_param ? 1 : 0);
}

// One tensor of a call: borrowed device memory, arrays of equal length that do not overlap, in any alignment that
// the element types have.
constexpr int kMaxStates = 3;
struct DeviceTensor {
  void* param;
  const void* grad;
  void* states[kMaxStates];
  float* step;  // null, or its own counter of steps on the device
  std::int64_t numel;
  StoredTypes types;
};

// Cuts the tensors of type `code` into tables, in their order, and calls launch(table) for each that has elements;
// launch returns 0 or an error, which ends it. fill(pointers, i, tensor) sets pointers[k][i]; chunk(total) is the
// chunk for a table of `total` elements.
template <class Table, class Fill, class Chunk, class Launch>
int for_each_table(const DeviceTensor* tensors, std::size_t count, int code, const Fill& fill, const Chunk& chunk,
                   const Launch& launch) {
  Table table;
  std::size_t i = 0;
  while (i < count) {
    std::int64_t total = 0;
    table.count = 0;
    for (; i < count && table.count < table.kCapacity; ++i) {
      if (tensors[i].numel == 0 || type_code(tensors[i].types) != code) {
        continue;
      }
      fill(table.pointers, table.count, tensors[i]);
      table.numel[table.count++] = tensors[i].numel;
      total += tensors[i].numel;
    }
    if (total > 0) {
      number_chunks(table, chunk(total));
      if (const int error = launch(table)) {
        return error;
      }
    }
  }
  return 0;
}

}  // namespace accel::multi_tensor
