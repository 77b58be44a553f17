// How the work of one call is cut: which tensors a kernel launch gets, which chunk a block takes, which elements
// of a chunk go as vectors. Plain C++, so that it is tested on the host; the kernels call the very same functions.
//
// A launch carries its tensors' addresses in its own parameters. The other way, a table in device memory, would
// need an allocation, a copy from pinned memory and a promise not to touch that memory while a graph may replay;
// parameters are copied by the launch, also into a graph. Since CUDA 12.1 they may take 32,764 bytes, which is
// room for some 600 tensors: 10,000 tensors are 17 launches, where 4 KiB would make it 140, each with a start and
// an end at which the memory idles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "common/host_device.h"

namespace accel::cuda {

#if defined(CUDART_VERSION) && CUDART_VERSION < 12010
constexpr std::size_t kParameterBytes = 4096;
#else
constexpr std::size_t kParameterBytes = 32764;
#endif
// Of them, for what is not the table.
constexpr std::size_t kControlBytes = 512;

// Eight warps: a block's end, where its warps wait for the last, is short, and eight blocks fill a processor.
constexpr int kThreads = 256;
// Elements of each array that a thread has under way at once. In float32 Adam's four arrays are then 128 bytes a
// thread, some 96 KiB a processor with the threads that its registers are enough for; latency times bandwidth of an
// H200 asks for 30. In 16 bits it is half as much, and more would halve the threads.
constexpr int kElementsInFlight = 8;

// Elements in a vector: 16 bytes of the largest of the types; narrower ones are moved 8 bytes at a time, so that
// neighbouring threads always touch neighbouring bytes.
constexpr int vector_elements(int largest_element_bytes) { return 16 / largest_element_bytes; }

// Chunks begin at multiples of what a block has under way at once, the least that a chunk is worth.
constexpr int kChunkUnit = kThreads * kElementsInFlight;
constexpr std::int64_t kLargestChunk = std::int64_t{1} << 24;

// What a launch may be given; kPointers arrays of addresses for each tensor.
template <int kPointers>
struct TensorTable {
  static constexpr std::size_t kBytesPerTensor =
      kPointers * sizeof(void*) + sizeof(std::int64_t) + sizeof(std::uint32_t);
  static constexpr int kCapacity = static_cast<int>((kParameterBytes - kControlBytes) / kBytesPerTensor);

  void* pointers[kPointers][kCapacity];
  std::int64_t numel[kCapacity];
  std::uint32_t first_chunk[kCapacity + 1];  // tensor i has the chunks [first_chunk[i], first_chunk[i + 1])
  std::int32_t count;
  std::int32_t chunk_elements;

  ACCEL_HOST_DEVICE std::uint32_t chunks() const { return first_chunk[count]; }
};

constexpr std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t unit) { return ceil_divide(a, unit) * unit; }

// A chunk for `total` elements and a device that runs `resident_blocks` at once: eight chunks for each of those
// blocks, so that none runs much longer than the others, but no more than `most` elements (an upper bound given by
// the caller), since long chunks gain nothing, and at least one unit.
inline std::int32_t balanced_chunk(std::int64_t total, std::int64_t resident_blocks, std::int64_t most) {
  const std::int64_t even = round_up(ceil_divide(total, resident_blocks * 8), kChunkUnit);
  std::int64_t limit = most / kChunkUnit * kChunkUnit;
  limit = limit < kChunkUnit ? kChunkUnit : limit > kLargestChunk ? kLargestChunk : limit;
  return static_cast<std::int32_t>(even < kChunkUnit ? kChunkUnit : even > limit ? limit : even);
}

// A chunk of just `asked` elements, rounded up to what kernels can take: for sums whose order must not depend on
// the device.
inline std::int32_t fixed_chunk(std::int64_t asked) {
  const std::int64_t bounded = asked < 1 ? 1 : asked > kLargestChunk ? kLargestChunk : asked;
  return static_cast<std::int32_t>(round_up(bounded, kChunkUnit));
}

// Numbers the chunks of a table whose `count` and `numel` are set.
template <int kPointers>
void number_chunks(TensorTable<kPointers>& table, std::int32_t chunk_elements) {
  table.chunk_elements = chunk_elements;
  table.first_chunk[0] = 0;
  for (int i = 0; i < table.count; ++i) {
    table.first_chunk[i + 1] =
        table.first_chunk[i] + static_cast<std::uint32_t>(ceil_divide(table.numel[i], chunk_elements));
  }
}

// The tensor that has `chunk`, which lies in [first_chunk[low], first_chunk[count]). Tensors without elements
// have no chunk and are never found.
ACCEL_HOST_DEVICE inline int find_tensor(const std::uint32_t* first_chunk, int count, std::uint32_t chunk, int low) {
  int high = count;
  while (high - low > 1) {  // the last that starts at or before `chunk`
    const int middle = low + (high - low) / 2;
    if (first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The elements of one chunk: [0, head) and [tail, count) one by one, [head, tail) in whole vectors.
struct ChunkParts {
  int head;
  int tail;
  int count;
};

// Elements up to the first at which an array is aligned for vectors; `address` is a multiple of `element_bytes`.
ACCEL_HOST_DEVICE inline int elements_to_alignment(std::uintptr_t address, int element_bytes, int vector_elements) {
  const int over = static_cast<int>(address / element_bytes % vector_elements);
  return over == 0 ? 0 : vector_elements - over;
}

// `head` is that of all arrays of the chunk, or -1 where they differ: then there are no vectors.
ACCEL_HOST_DEVICE inline ChunkParts chunk_parts(int count, int head, int vector_elements) {
  if (head < 0 || head >= count) {
    return {count, count, count};
  }
  return {head, head + (count - head) / vector_elements * vector_elements, count};
}

// The place of the i-th of the elements that go one by one.
ACCEL_HOST_DEVICE inline int single_element(const ChunkParts& parts, int i) {
  return i < parts.head ? i : i - parts.head + parts.tail;
}
ACCEL_HOST_DEVICE inline int single_elements(const ChunkParts& parts) {
  return parts.head + (parts.count - parts.tail);
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
template <int kPointers, class Fill, class Chunk, class Launch>
int for_each_table(const DeviceTensor* tensors, std::size_t count, int code, const Fill& fill, const Chunk& chunk,
                   const Launch& launch) {
  TensorTable<kPointers> table;
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

}  // namespace accel::cuda
