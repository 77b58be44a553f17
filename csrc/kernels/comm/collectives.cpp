#include "kernels/comm/collectives.h"

#include <algorithm>
#include <utility>

#include "kernels/comm/copies.h"

namespace accel::comm {
namespace {

constexpr std::int64_t kBlock = 8 << 10;

// The fewest chunks of equal length that fit; at least one.
class Chunks {
 public:
  Chunks(std::int64_t total, std::int64_t most, std::int64_t granule)
      : total_(total), length_(std::max<std::int64_t>(total, 1)) {
    if (total > most) {
      const std::int64_t least = (total + most - 1) / most;
      const std::int64_t length = (total + least - 1) / least;
      length_ = std::min(most, (length + granule - 1) / granule * granule);
    }
  }
  std::int64_t size() const { return std::max<std::int64_t>(1, (total_ + length_ - 1) / length_); }
  std::int64_t begin(std::int64_t chunk) const { return chunk * length_; }
  std::int64_t count(std::int64_t chunk) const { return std::min(length_, total_ - begin(chunk)); }

 private:
  std::int64_t total_;
  std::int64_t length_;
};

}  // namespace

Collectives::Collectives(Phases& phases, std::vector<char*> segments, const Tuning& tuning, cpu::Isa isa)
    : phases_(phases),
      rank_(phases.rank()),
      size_(phases.size()),
      segments_(std::move(segments)),
      tuning_(tuning),
      layout_{tuning.slot_bytes},
      sources_(static_cast<std::size_t>(size_)),
      outs_(static_cast<std::size_t>(size_)) {
  for (int element = 0; element < 4; ++element) {
    reducers_[element] = find_reducer(isa, static_cast<Element>(element));
  }
}

Collectives::Slice Collectives::slice_of(std::int64_t count, int size, int rank, std::int64_t element_bytes) {
  const std::int64_t granule = kLine / element_bytes;
  const std::int64_t each = ((count + size - 1) / size + granule - 1) / granule * granule;
  return {std::min(each * rank, count), std::min(each * (rank + 1), count)};
}

Call Collectives::reduction(Call::Kind kind, const Numbers& numbers) {
  Call call;
  call.kind = kind;
  call.element = static_cast<std::uint8_t>(numbers.element);
  call.reduction = static_cast<std::uint8_t>(numbers.reduction);
  call.count = static_cast<std::uint64_t>(numbers.count);
  return call;
}

Call Collectives::transfer(Call::Kind kind, std::int64_t bytes, int type, int source) {
  Call call;
  call.kind = kind;
  call.type = static_cast<std::uint16_t>(type);
  call.source = static_cast<std::uint16_t>(source);
  call.count = static_cast<std::uint64_t>(bytes);
  return call;
}

// One phase per chunk: in step i a rank reads chunk i - 1 and writes chunk i. It reads nothing before all ranks are
// known to make the same call.
template <class Give, class Take>
bool Collectives::in_chunks(const Call& call, std::int64_t chunks, const Give& give, const Take& take) {
  phases_.announce(call);
  for (std::int64_t step = 0; step <= chunks; ++step) {
    if (step == 1 ? !phases_.meet_and_compare() : step > 1 && !phases_.meet()) {
      return false;
    }
    if (step >= 1) {
      take(step - 1);
    }
    if (step < chunks) {
      give(step);
      fence_streams();
      phases_.publish();
    }
  }
  return true;
}

// The work of a rank on all ranks' memory between two meetings. `data` is its position in the rank's own memory.
template <class Work>
bool Collectives::in_place(Call call, const Symmetric& memory, const void* data, const Work& work) {
  const std::int64_t offset = static_cast<const char*>(data) - memory.base(rank_);
  call.is_symmetric = true;
  call.place = memory.id << 44 | static_cast<std::uint64_t>(offset);
  phases_.announce(call);
  phases_.publish();
  if (!phases_.meet_and_compare()) {
    return false;
  }
  work(offset);
  phases_.publish();  // the others may reuse their memory
  return phases_.meet();
}

const Symmetric* Collectives::symmetric_of(const void* data, std::int64_t bytes) const {
  for (const auto& memory : symmetric_) {
    if (memory->holds(data, bytes)) {
      return memory.get();
    }
  }
  return nullptr;
}

void Collectives::remove_symmetric(const void* base) {
  symmetric_.erase(std::remove_if(symmetric_.begin(), symmetric_.end(),
                                  [&](const auto& memory) { return memory->base(memory->rank) == base; }),
                   symmetric_.end());
}

void Collectives::run(const Numbers& numbers, const void* const* sources, void* const* outs, int out_count,
                      std::int64_t count) {
  reducers_[static_cast<int>(numbers.element)]({sources, size_, outs, out_count, count, numbers.reduction});
}

bool Collectives::barrier() {
  phases_.announce(transfer(Call::Kind::barrier, 0));
  phases_.publish();
  return phases_.meet_and_compare();
}

bool Collectives::agree(const std::string& text) {
  char* const slot = given(rank_, phases_.next_parity());
  const std::size_t length = std::min(text.size(), kTextBytes - 1);
  copy(slot, text.data(), static_cast<std::int64_t>(length));
  slot[length] = 0;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  phases_.announce(transfer(Call::Kind::other, static_cast<std::int64_t>(hash)));
  phases_.publish();
  return phases_.meet_and_compare();
}

std::string Collectives::text_of(int rank) const { return given(rank, phases_.parity()); }

bool Collectives::all_reduce(const void* input, void* output, const Numbers& numbers) {
  const std::int64_t bytes = numbers.count * size_bytes(numbers.element);
  if (bytes <= tuning_.one_shot_bytes) {
    return all_reduce_small(input, output, numbers);
  }
  if (input == output) {
    if (const Symmetric* const memory = symmetric_of(output, bytes)) {
      return all_reduce_symmetric(*memory, output, numbers);
    }
  }
  return all_reduce_large(static_cast<const char*>(input), static_cast<char*>(output), numbers);
}

bool Collectives::all_reduce_small(const void* input, void* output, const Numbers& numbers) {
  const int parity = phases_.next_parity();
  copy(given(rank_, parity), input, numbers.count * size_bytes(numbers.element));
  phases_.announce(reduction(Call::Kind::all_reduce, numbers));
  phases_.publish();
  if (!phases_.meet_and_compare()) {
    return false;
  }
  for (int other = 0; other < size_; ++other) {
    sources_[other] = given(other, parity);
  }
  sources_[rank_] = input;
  run(numbers, sources_.data(), &output, 1, numbers.count);
  // All ranks have read the slot that the next collective uses, so it can be fetched while the caller does other work.
  const std::int64_t bytes = numbers.count * size_bytes(numbers.element);
  fetch_for_writing(given(rank_, phases_.next_parity()), std::min(bytes, kMostFetched));
  return true;
}

// In step i a rank writes chunk i, reduces its slice of chunk i - 1, and reads the others' slices of chunk i - 2.
bool Collectives::all_reduce_large(const char* input, char* output, const Numbers& numbers) {
  const std::int64_t element_bytes = size_bytes(numbers.element);
  const Chunks chunks(numbers.count, layout_.slot_bytes / element_bytes, size_ * kLine / element_bytes);
  const std::int64_t bytes = numbers.count * element_bytes;
  const bool is_long = chunks.size() >= StreamingInSteps::kLeast;
  StreamingInSteps in_steps;
  bool streams = is_long || streaming_.begin(bytes);

  // The whole chunk except this rank's slice.
  const auto give = [&](std::int64_t chunk) {
    const char* const from = input + chunks.begin(chunk) * element_bytes;
    const std::int64_t count = chunks.count(chunk);
    const Slice mine = slice_of(count, size_, rank_, element_bytes);
    char* const slot = given(rank_, phases_.next_parity());
    const std::int64_t end = mine.end * element_bytes;
    stream(slot, from, mine.begin * element_bytes, !streams);
    stream(slot + end, from + end, count * element_bytes - end, !streams);
  };
  const auto reduce_slice = [&](std::int64_t chunk) {
    const Slice mine = slice_of(chunks.count(chunk), size_, rank_, element_bytes);
    const std::int64_t offset = mine.begin * element_bytes;
    for (int other = 0; other < size_; ++other) {
      sources_[other] = given(other, phases_.parity()) + offset;
    }
    sources_[rank_] = input + chunks.begin(chunk) * element_bytes + offset;
    char* const to = output + chunks.begin(chunk) * element_bytes + offset;
    char* const slot = reduced(rank_, phases_.next_parity());
    // In blocks that are still in the L1 cache when they are copied.
    for (std::int64_t at = 0; at < mine.count() * element_bytes; at += kBlock) {
      const std::int64_t block = std::min(kBlock, mine.count() * element_bytes - at);
      void* const out = to + at;
      run(numbers, sources_.data(), &out, 1, block / element_bytes);
      stream(slot + at, out, block, !streams);
      for (const void*& source : sources_) {
        source = static_cast<const char*>(source) + kBlock;
      }
    }
  };
  const auto take_slices = [&](std::int64_t chunk) {
    char* const to = output + chunks.begin(chunk) * element_bytes;
    for (int turn = 1; turn < size_; ++turn) {
      const int other = (rank_ + turn) % size_;
      const Slice theirs = slice_of(chunks.count(chunk), size_, other, element_bytes);
      copy(to + theirs.begin * element_bytes, reduced(other, phases_.parity()), theirs.count() * element_bytes);
    }
  };

  std::int64_t began_ns = now_ns();
  phases_.announce(reduction(Call::Kind::all_reduce, numbers), streaming_.taken_ns());
  for (std::int64_t step = 0; step < chunks.size() + 2; ++step) {
    if (step == 1) {
      const std::int64_t arrived_ns = now_ns();
      if (!phases_.meet_and_compare()) {
        return false;
      }
      began_ns += now_ns() - arrived_ns;  // all ranks have arrived
      streaming_.learn(phases_.largest_remark());
    } else if (step > 1 && !phases_.meet()) {
      return false;
    }
    if (is_long) {
      if (in_steps.begin(step, now_ns())) {
        streaming_.decide(bytes, in_steps.streams());
      }
      streams = in_steps.streams();
    }
    if (step >= 1 && step <= chunks.size()) {
      reduce_slice(step - 1);
    }
    if (step < chunks.size()) {
      give(step);
    }
    if (step >= 2) {
      take_slices(step - 2);
    }
    if (step <= chunks.size()) {
      fence_streams();
      phases_.publish();
    }
  }
  if (!is_long) {
    streaming_.end(now_ns() - began_ns);
  }
  return true;
}

bool Collectives::all_reduce_symmetric(const Symmetric& memory, void* data, const Numbers& numbers) {
  const std::int64_t element_bytes = size_bytes(numbers.element);
  const Slice mine = slice_of(numbers.count, size_, rank_, element_bytes);
  return in_place(reduction(Call::Kind::all_reduce, numbers), memory, data, [&](std::int64_t offset) {
    for (int other = 0; other < size_; ++other) {
      sources_[other] = outs_[other] = memory.base(other) + offset + mine.begin * element_bytes;
    }
    run(numbers, sources_.data(), outs_.data(), size_, mine.count());
  });
}

bool Collectives::reduce_scatter(const void* input, void* output, const Numbers& numbers) {
  const std::int64_t element_bytes = size_bytes(numbers.element);
  const std::int64_t part = numbers.count * element_bytes;
  const Call announced = reduction(Call::Kind::reduce_scatter, numbers);
  if (const Symmetric* const memory = symmetric_of(input, part * size_)) {
    return in_place(announced, *memory, input, [&](std::int64_t offset) {
      for (int other = 0; other < size_; ++other) {
        sources_[other] = memory->base(other) + offset + rank_ * part;
      }
      run(numbers, sources_.data(), &output, 1, numbers.count);
    });
  }
  const char* const from = static_cast<const char*>(input);
  const std::int64_t room = layout_.slot_bytes / size_ / kLine * kLine;  // for each rank's part
  const Chunks chunks(numbers.count, room / element_bytes, kLine / element_bytes);
  const bool is_plain = !streaming_.is_better(part * size_);
  const auto give = [&](std::int64_t chunk) {
    char* const slot = given(rank_, phases_.next_parity());
    for (int other = 0; other < size_; ++other) {
      if (other != rank_) {
        stream(slot + other * room, from + other * part + chunks.begin(chunk) * element_bytes,
               chunks.count(chunk) * element_bytes, is_plain);
      }
    }
  };
  const auto take = [&](std::int64_t chunk) {
    const std::int64_t begin = chunks.begin(chunk) * element_bytes;
    for (int other = 0; other < size_; ++other) {
      sources_[other] = given(other, phases_.parity()) + rank_ * room;
    }
    sources_[rank_] = from + rank_ * part + begin;
    void* const out = static_cast<char*>(output) + begin;
    run(numbers, sources_.data(), &out, 1, chunks.count(chunk));
  };
  return in_chunks(announced, chunks.size(), give, take);
}

bool Collectives::all_gather(const void* input, void* output, std::int64_t bytes, int type) {
  const Call announced = transfer(Call::Kind::all_gather, bytes, type);
  if (const Symmetric* const memory = symmetric_of(output, bytes * size_)) {
    return in_place(announced, *memory, output, [&](std::int64_t offset) {
      for (int turn = 0; turn < size_; ++turn) {
        copy(memory->base((rank_ + turn) % size_) + offset + rank_ * bytes, input, bytes);
      }
    });
  }
  const char* const from = static_cast<const char*>(input);
  char* const to = static_cast<char*>(output);
  const Chunks chunks(bytes, layout_.slot_bytes, kLine);
  const bool is_plain = !streaming_.is_better(bytes * size_);
  const auto give = [&](std::int64_t chunk) {
    stream(given(rank_, phases_.next_parity()), from + chunks.begin(chunk), chunks.count(chunk), is_plain);
  };
  const auto take = [&](std::int64_t chunk) {
    for (int turn = 0; turn < size_; ++turn) {
      const int other = (rank_ + turn) % size_;
      const char* const theirs = turn == 0 ? from + chunks.begin(chunk) : given(other, phases_.parity());
      copy(to + other * bytes + chunks.begin(chunk), theirs, chunks.count(chunk));
    }
  };
  return in_chunks(announced, chunks.size(), give, take);
}

bool Collectives::broadcast(void* data, std::int64_t bytes, int source, int type) {
  const Call announced = transfer(Call::Kind::broadcast, bytes, type, source);
  if (const Symmetric* const memory = symmetric_of(data, bytes)) {
    return in_place(announced, *memory, data, [&](std::int64_t offset) {
      if (rank_ != source) {
        copy(data, memory->base(source) + offset, bytes);
      }
    });
  }
  char* const local = static_cast<char*>(data);
  const Chunks chunks(bytes, layout_.slot_bytes, kLine);
  const bool is_plain = !streaming_.is_better(bytes);
  const auto give = [&](std::int64_t chunk) {
    if (rank_ == source) {
      stream(given(rank_, phases_.next_parity()), local + chunks.begin(chunk), chunks.count(chunk), is_plain);
    }
  };
  const auto take = [&](std::int64_t chunk) {
    if (rank_ != source) {
      copy(local + chunks.begin(chunk), given(source, phases_.parity()), chunks.count(chunk));
    }
  };
  return in_chunks(announced, chunks.size(), give, take);
}

}  // namespace accel::comm
