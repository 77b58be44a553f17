// The collectives of shm_comm without torch and without processes: ranks are threads over one mapping, so that the
// thread sanitizer sees who reads what another has written. Each result is compared with one that a thread alone works
// out. Run by test_kernels_alone.py.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "kernels/comm/collectives.h"

using namespace accel::comm;

namespace {

struct Alone : Surroundings {
  bool is_alive(int) override { return true; }
  bool is_interrupted() override { return false; }
};

struct Free {
  void operator()(char* data) const { std::free(data); }
};
using Pages = std::unique_ptr<char, Free>;

Pages zeros(std::size_t bytes) {
  Pages pages(static_cast<char*>(std::aligned_alloc(4096, bytes)));
  std::memset(pages.get(), 0, bytes);
  return pages;
}

std::int32_t value_of(int rank, int round, std::int64_t i) {
  return static_cast<std::int32_t>((rank + 1) * 7919 + round * 104729 + i * 31);
}

int failures = 0;
void require(bool holds, const char* what, int round) {
  if (!holds) {
    std::printf("%s is wrong in round %d\n", what, round);
    __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
  }
}

struct Team {
  int size;
  int rounds;
  Tuning tuning;
  std::int64_t most;  // elements
  std::int64_t spin_ns;
};

class Rank {
 public:
  Rank(const Team& team, int rank, const std::vector<char*>& segments, std::vector<char*> symmetric)
      : team_(team),
        rank_(rank),
        phases_(rank, segments, {60'000'000'000, team.spin_ns}, alone_),
        all_(phases_, segments, team.tuning,
             accel::cpu::isa_supported(accel::cpu::Isa::avx2) ? accel::cpu::Isa::avx2 : accel::cpu::Isa::baseline) {
    symmetric_ = reinterpret_cast<std::int32_t*>(symmetric[rank]);
    const std::int64_t bytes = team.most * team.size * 4;
    all_.add_symmetric(std::make_shared<const Symmetric>(Symmetric{0, rank, bytes, std::move(symmetric), {}}));
  }

  void run() {
    std::mt19937 generator(42);  // the same on all ranks
    const auto random = [&](std::int64_t below) { return static_cast<std::int64_t>(generator() % below); };
    for (round_ = 0; round_ < team_.rounds; ++round_) {
      const std::int64_t which = random(8), count = random(random(4) == 0 ? 4 : team_.most);
      const bool is_symmetric = random(3) == 0;
      one(which, count, is_symmetric, static_cast<int>(random(team_.size)));
    }
  }

 private:
  void fill(std::int32_t* data, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) data[i] = value_of(rank_, round_, i);
  }

  // Elements from ``begin`` of the sum of all ranks.
  bool is_sum(const std::int32_t* data, std::int64_t count, std::int64_t begin = 0) const {
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint32_t sum = 0;
      for (int r = 0; r < team_.size; ++r) sum += static_cast<std::uint32_t>(value_of(r, round_, begin + i));
      if (data[i] != static_cast<std::int32_t>(sum)) return false;
    }
    return true;
  }

  bool is_of(int rank, const std::int32_t* data, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      if (data[i] != value_of(rank, round_, i)) return false;
    }
    return true;
  }

  void one(std::int64_t which, std::int64_t count, bool is_symmetric, int source) {
    const std::int64_t all = count * team_.size;
    std::vector<std::int32_t> first(static_cast<std::size_t>(all) + 1), second(static_cast<std::size_t>(count) + 1, -1);
    std::int32_t* const data = is_symmetric ? symmetric_ : first.data();
    const Collectives::Numbers numbers{count, Element::int32, Reduction::sum};
    if (which == 0) {
      require(all_.barrier(), "barrier", round_);
    } else if (which <= 3) {
      std::int32_t* const out = which == 1 ? second.data() : data;
      fill(data, count);
      require(all_.all_reduce(data, out, numbers) && is_sum(out, count), "all_reduce", round_);
    } else if (which == 4) {
      fill(data, all);
      const bool is_done = all_.reduce_scatter(data, second.data(), numbers);
      require(is_done && is_sum(second.data(), count, rank_ * count), "reduce_scatter", round_);
    } else if (which <= 6) {
      fill(second.data(), count);
      bool is_right = all_.all_gather(second.data(), data, count * 4);
      for (int r = 0; r < team_.size; ++r) is_right = is_right && is_of(r, data + r * count, count);
      require(is_right, "all_gather", round_);
    } else {
      fill(data, count);
      require(all_.broadcast(data, count * 4, source) && is_of(source, data, count), "broadcast", round_);
    }
  }

  const Team team_;
  const int rank_;
  int round_ = 0;
  Alone alone_;
  Phases phases_;
  Collectives all_;
  std::int32_t* symmetric_;
};

void run(const Team& team) {
  std::vector<Pages> pages;
  std::vector<char*> segments, symmetric;
  for (int r = 0; r < team.size; ++r) {
    pages.push_back(zeros(SlotLayout{team.tuning.slot_bytes}.segment_bytes()));
    segments.push_back(pages.back().get());
    pages.push_back(zeros((team.most * team.size * 4 + 4095) / 4096 * 4096));
    symmetric.push_back(pages.back().get());
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < team.size; ++r) {
    threads.emplace_back([&, r] { Rank(team, r, segments, symmetric).run(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::printf("%d ranks: done\n", team.size);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 500;
  run({2, rounds, {4096, 512}, 6000, 20'000});
  run({3, rounds / 2, {4096, 512}, 5000, 0});
  run({5, rounds / 4, {8192, 1024}, 9000, 0});
  run({2, rounds / 8, {4096, 512}, 40'000, 0});  // so many chunks that both ways are tried in a call
  return failures == 0 ? 0 : 1;
}
