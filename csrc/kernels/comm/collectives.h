// The collectives of one group, over memory that all ranks map. One thread at a time.
//
// Small data goes through a slot of each rank, which all others read. Large data goes through the same slots in chunks
// that stay in the caches, so each tensor is read from main memory once and written once: while the ranks reduce one
// chunk, they fill the next and copy out the previous one, and meet once per chunk. Symmetric memory, which every rank
// maps, needs no slots.
//
// Each element is reduced in the order of the ranks, so the results are the same on all ranks and in every run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/comm/phases.h"
#include "kernels/comm/reduce.h"
#include "kernels/comm/segment.h"
#include "kernels/comm/streaming.h"

namespace accel::comm {

// Memory of the same size in each rank's segment; `bases` are its addresses in this process, by rank.
struct Symmetric {
  std::uint64_t id;  // the same on all ranks
  int rank;
  std::int64_t bytes;
  std::vector<char*> bases;
  std::vector<Mapping> mappings;  // keeps it mapped

  char* base(int of) const { return bases[static_cast<std::size_t>(of)]; }
  bool holds(const void* data, std::int64_t size) const {
    const char* const begin = static_cast<const char*>(data);
    return begin >= base(rank) && begin + size <= base(rank) + bytes;
  }
};

// The slots of one rank, behind its Control: two for its input, two for its reduced slices.
struct SlotLayout {
  static constexpr std::int64_t kControlBytes = 4096;
  std::int64_t slot_bytes;  // a multiple of 4096

  std::int64_t segment_bytes() const { return kControlBytes + 4 * slot_bytes; }
  std::int64_t given(int parity) const { return kControlBytes + parity * slot_bytes; }
  std::int64_t reduced(int parity) const { return kControlBytes + (2 + parity) * slot_bytes; }
};

struct Tuning {
  std::int64_t slot_bytes;
  std::int64_t one_shot_bytes;  // up to this size each rank reads the others' whole data
};

// Functions return false if a rank is missing or makes another call: phases.failure() has the reason, and the output is
// undefined. A `Numbers` describes elements: `count` of type `element`.
class Collectives {
 public:
  struct Numbers {
    std::int64_t count;
    Element element;
    Reduction reduction;
  };

  // `segments` of all ranks, borrowed, in the layout of SlotLayout.
  Collectives(Phases& phases, std::vector<char*> segments, const Tuning& tuning, cpu::Isa isa);

  // Both have numbers.count elements; they are identical or do not overlap.
  bool all_reduce(const void* input, void* output, const Numbers& numbers);
  // Writes this rank's part of the reduced `input`, which has size() parts, to `output`, which has numbers.count
  // elements and may be this rank's part of `input`.
  bool reduce_scatter(const void* input, void* output, const Numbers& numbers);
  // `output` has size() parts of `bytes`; `input` may be this rank's part of it. `type`, below 65536, must be the same on
  // all ranks.
  bool all_gather(const void* input, void* output, std::int64_t bytes, int type = 0);
  bool broadcast(void* data, std::int64_t bytes, int source, int type = 0);
  bool barrier();
  // Compares `text`, at most kTextBytes long, with that of the other ranks, for a collective that runs elsewhere.
  bool agree(const std::string& text);
  static constexpr std::size_t kTextBytes = 512;
  // The text that a rank passed to agree(); valid only right after agree() failed with a mismatch.
  std::string text_of(int rank) const;

  // In-place collectives of more than one_shot_bytes on memory in it move no byte twice. All ranks add the same memory
  // in the same order.
  void add_symmetric(std::shared_ptr<const Symmetric> memory) { symmetric_.push_back(std::move(memory)); }
  void remove_symmetric(const void* base);

 private:
  // Elements [begin, end) of a chunk that one rank reduces.
  struct Slice {
    std::int64_t begin;
    std::int64_t end;
    std::int64_t count() const { return end - begin; }
  };

  static Slice slice_of(std::int64_t count, int size, int rank, std::int64_t element_bytes);
  static Call reduction(Call::Kind kind, const Numbers& numbers);
  static Call transfer(Call::Kind kind, std::int64_t bytes, int type = 0, int source = Call::kNoRank);
  const Symmetric* symmetric_of(const void* data, std::int64_t bytes) const;
  template <class Give, class Take>
  bool in_chunks(const Call& call, std::int64_t chunks, const Give& give, const Take& take);
  template <class Work>
  bool in_place(Call call, const Symmetric& memory, const void* data, const Work& work);
  char* given(int rank, int parity) const { return segments_[rank] + layout_.given(parity); }
  char* reduced(int rank, int parity) const { return segments_[rank] + layout_.reduced(parity); }

  bool all_reduce_small(const void* input, void* output, const Numbers& numbers);
  bool all_reduce_large(const char* input, char* output, const Numbers& numbers);
  bool all_reduce_symmetric(const Symmetric& memory, void* data, const Numbers& numbers);
  void run(const Numbers& numbers, const void* const* sources, void* const* outs, int out_count, std::int64_t count);

  Phases& phases_;
  const int rank_;
  const int size_;
  const std::vector<char*> segments_;
  const Tuning tuning_;
  const SlotLayout layout_;
  Streaming streaming_;
  Reducer reducers_[4];               // by element
  std::vector<const void*> sources_;  // scratch, by rank
  std::vector<void*> outs_;
  std::vector<std::shared_ptr<const Symmetric>> symmetric_;
};

}  // namespace accel::comm
