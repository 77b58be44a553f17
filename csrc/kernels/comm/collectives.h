// The collectives of one group, over memory that all ranks map. One thread at a time.
//
// Small data goes through a slot of each rank, which all others read. Large data goes through the same slots in chunks
// that stay in the caches, so that of main memory each tensor is read once and written once: while the ranks reduce one
// chunk they fill in the next and copy out the one before, and meet once for each. Symmetric memory, which every rank
// sees whole, needs no slots.
//
// Each element is reduced in the order of the ranks, by one rank for all or by each alike, so the results are the same
// on all ranks and in every run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/comm/phases.h"
#include "kernels/comm/reduce.h"
#include "kernels/comm/segment.h"

namespace accel::comm {

// Memory of one size that each rank has in its own segment; `bases` are where this process sees them, by rank.
struct Symmetric {
  std::uint64_t id;  // the same on all ranks
  int rank;
  std::int64_t bytes;
  std::vector<char*> bases;
  std::vector<Mapping> mappings;  // what keeps it there

  char* base(int of) const { return bases[static_cast<std::size_t>(of)]; }
  bool holds(const void* data, std::int64_t size) const {
    const char* const begin = static_cast<const char*>(data);
    return begin >= base(rank) && begin + size <= base(rank) + bytes;
  }
};

// The slots of one rank, behind its Control: two for what it gives, two for what it has reduced.
struct SlotLayout {
  static constexpr std::int64_t kControlBytes = 4096;
  std::int64_t slot_bytes;  // a multiple of 4096

  std::int64_t segment_bytes() const { return kControlBytes + 4 * slot_bytes; }
  std::int64_t given(int parity) const { return kControlBytes + parity * slot_bytes; }
  std::int64_t reduced(int parity) const { return kControlBytes + (2 + parity) * slot_bytes; }
};

// Whether what others read next is written past the caches, found out by trying. Where the ranks share a cache it costs a
// third; where they do not, a line comes from the other's cache several times as slowly as from memory. Cores of virtual
// machines move, so it is tried again and again. All ranks try in the same calls, as they make the same ones.
class Streaming {
 public:
  // Whether to, in a call over `bytes`, of which all make many. A trial takes two: the first finds the slots as the other
  // way has left them.
  bool begin(std::int64_t bytes) {
    calls_ = bytes == bytes_ ? calls_ + 1 : 0;
    bytes_ = bytes;
    const std::int64_t turn = calls_ < kTrialEvery ? calls_ - kFirstTrial : calls_ % kTrialEvery;
    trial_ = turn == 0 || turn == 1 ? static_cast<int>(turn) + 1 : 0;
    return (trial_ != 0) != is_better_;
  }
  void end(std::int64_t taken_ns) {
    if (trial_ == 0) {
      usual_ns_ = taken_ns;
    } else if (trial_ == 2 && taken_ns < usual_ns_ - usual_ns_ / 16) {
      is_better_ = !is_better_;
    }
  }
  void decide(bool is_better) { is_better_ = is_better; }
  bool is_better() const { return is_better_; }

 private:
  static constexpr std::int64_t kFirstTrial = 2, kTrialEvery = 32;
  std::int64_t calls_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t usual_ns_ = 0;
  int trial_ = 0;  // the first or second call of one
  bool is_better_ = true;
};

struct Tuning {
  std::int64_t slot_bytes = 256 << 10;
  std::int64_t one_shot_bytes = 4 << 10;  // up to here each rank reads all others' data
};

// Functions return false when a rank did not come or did something else: phases.failure() says why. What they were to
// write is undefined then. Elements are `Numbers::count` of `Numbers::element`.
class Collectives {
 public:
  struct Numbers {
    std::int64_t count;
    Element element;
    Reduction reduction;
  };

  // `segments` of all ranks, borrowed, laid out as SlotLayout says.
  Collectives(Phases& phases, std::vector<char*> segments, const Tuning& tuning, cpu::Isa isa);

  // Both of numbers.count elements; the same, or apart.
  bool all_reduce(const void* input, void* output, const Numbers& numbers);
  // `output` of numbers.count elements becomes this rank's part of `input`, which has size() parts. It may be that part.
  bool reduce_scatter(const void* input, void* output, const Numbers& numbers);
  // `output` has size() parts of `bytes`; `input` may be this rank's part of it.
  bool all_gather(const void* input, void* output, std::int64_t bytes);
  bool broadcast(void* data, std::int64_t bytes, int source);
  bool barrier();

  // In-place collectives of more than one_shot_bytes on memory in it move no byte twice. All ranks add the same, in the same order.
  void add_symmetric(std::shared_ptr<const Symmetric> memory) { symmetric_.push_back(std::move(memory)); }
  void remove_symmetric(const void* base);

 private:
  // Elements [begin, end) of a chunk that one rank reduces.
  struct Slice {
    std::int64_t begin;
    std::int64_t end;
    std::int64_t count() const { return end - begin; }
  };
  static constexpr int kNoRank = 0xffff;
  enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, barrier };

  static Slice slice_of(std::int64_t count, int size, int rank, std::int64_t element_bytes);
  Call call(Kind kind, const Numbers* numbers, std::int64_t count, int source = kNoRank) const;
  const Symmetric* symmetric_of(const void* data, std::int64_t bytes) const;
  Call with_place(Call call, const Symmetric& memory, const void* data) const;
  char* given(int rank, int parity) const { return segments_[rank] + layout_.given(parity); }
  char* reduced(int rank, int parity) const { return segments_[rank] + layout_.reduced(parity); }

  bool all_reduce_small(const void* input, void* output, const Numbers& numbers);
  bool all_reduce_large(const char* input, char* output, const Numbers& numbers);
  bool all_reduce_symmetric(const Symmetric& memory, void* data, const Numbers& numbers);
  bool reduce_scatter_symmetric(const Symmetric& memory, const void* input, void* output, const Numbers& numbers);
  bool all_gather_symmetric(const Symmetric& memory, const void* input, void* output, std::int64_t bytes);
  bool broadcast_symmetric(const Symmetric& memory, void* data, std::int64_t bytes, int source);
  void run(const Numbers& numbers, const void* const* sources, void* const* outs, int out_count, std::int64_t count);

  Phases& phases_;
  const int rank_;
  const int size_;
  const std::vector<char*> segments_;
  const Tuning tuning_;
  const SlotLayout layout_;
  Streaming streaming_;
  Reducer reducers_[4];  // by element
  std::vector<const void*> sources_;  // scratch, by rank
  std::vector<void*> outs_;
  std::vector<std::shared_ptr<const Symmetric>> symmetric_;
};

}  // namespace accel::comm
