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
#include "kernels/multi_tensor/table.h"

namespace accel::cuda {

using multi_tensor::ceil_divide;
using multi_tensor::DeviceTensor;
using multi_tensor::kMaxStates;
using multi_tensor::kTypeCodes;
using multi_tensor::number_chunks;
using multi_tensor::round_up;
using multi_tensor::StoredTypes;
using multi_tensor::type_code;

#if defined(CUDART_VERSION) && CUDART_VERSION < 12010
constexpr std::size_t kParameterBytes = 4096;
#else
constexpr std::size_t kParameterBytes = 32764;
#endif
// Of them, for what is not the table.
constexpr std::size_t kControlBytes = 512;

// Eight warps: a block's end, where its warps wait for the last, is short, and eight blocks fill a processor.
constexpr int kThreads = 256;
// Elements of each array that a thread has under way at once. In float32 Adam's four arrays are then 128 bytes per
// thread, some 96 KiB per processor with as many threads as its registers allow; latency times bandwidth of an H200
// requires 30 KiB. In 16 bits it is half as much; more would halve the threads.
constexpr int kElementsInFlight = 8;

// Elements in a vector: 16 bytes of the largest of the types; narrower ones are moved 8 bytes at a time, so that
// neighbouring threads always touch neighbouring bytes.
constexpr int vector_elements(int largest_element_bytes) { return 16 / largest_element_bytes; }

// Chunks begin at multiples of what a block has under way at once, the least that a chunk is worth.
constexpr int kChunkUnit = kThreads * kElementsInFlight;
constexpr std::int64_t kLargestChunk = std::int64_t{1} << 24;

template <int kPointers>
using TensorTable = multi_tensor::BoundedTable<kPointers, static_cast<int>((kParameterBytes - kControlBytes) /
                                                                           multi_tensor::kBytesPerTensor<kPointers>)>;

template <int kPointers, class Fill, class Chunk, class Launch>
int for_each_table(const DeviceTensor* tensors, std::size_t count, int code, const Fill& fill, const Chunk& chunk,
                   const Launch& launch) {
  return multi_tensor::for_each_table<TensorTable<kPointers>>(tensors, count, code, fill, chunk, launch);
}

// A chunk for `total` elements and a device that runs `resident_blocks` at once: eight chunks for each of those
// blocks, so that none runs much longer than the others, but no more than `most` elements (an upper bound given by
// the caller), since long chunks gain nothing, and at least one unit.
inline std::int32_t balanced_chunk(std::int64_t total, std::int64_t resident_blocks, std::int64_t most) {
  const std::int64_t even = round_up(ceil_divide(total, resident_blocks * 8), kChunkUnit);
  std::int64_t limit = most / kChunkUnit * kChunkUnit;
  limit = limit < kChunkUnit ? kChunkUnit : limit > kLargestChunk ? kLargestChunk : limit;
  return static_cast<std::int32_t>(even < kChunkUnit ? kChunkUnit : even > limit ? limit : even);
}

// A chunk of `requested` elements, rounded up to what kernels can take: for sums whose order must not depend on the
// device.
inline std::int32_t fixed_chunk(std::int64_t requested) {
  const std::int64_t bounded = requested < 1 ? 1 : requested > kLargestChunk ? kLargestChunk : requested;
  return static_cast<std::int32_t>(round_up(bounded, kChunkUnit));
}

// The tensor that has `chunk`, which is in [first_chunk[low], first_chunk[count]). Tensors without elements
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

}  // namespace accel::cuda
