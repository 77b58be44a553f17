// The collectives of shm_comm without torch and without processes: ranks are threads over one mapping, so that the
// thread sanitizer sees who reads what another has written. Each result is compared with one that a thread alone works
// out. Run by test_kernels_alone.py.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/comm/collectives.h"

using namespace accel::comm;

namespace {

struct Alone : Surroundings {
  bool is_alive(int) override { return true; }
  bool is_interrupted() override { return false; }
};

struct Random {
  std::uint64_t state;
  std::uint32_t operator()(std::uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33) % below;
  }
};

struct Pages {
  explicit Pages(std::size_t bytes) : data(static_cast<char*>(std::aligned_alloc(4096, bytes))) {
    std::memset(data, 0, bytes);
  }
  ~Pages() { std::free(data); }
  Pages(const Pages&) = delete;
  char* data;
};

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
  Rank(const Team& team, int rank, std::vector<char*> segments, std::vector<char*> symmetric)
      : team_(team),
        rank_(rank),
        phases_(rank, controls(segments), {60'000'000'000, team.spin_ns}, alone_),
        all_(phases_, segments, team.tuning,
             accel::cpu::isa_supported(accel::cpu::Isa::avx2) ? accel::cpu::Isa::avx2 : accel::cpu::Isa::baseline) {
    symmetric_ = reinterpret_cast<std::int32_t*>(symmetric[rank]);
    const std::int64_t bytes = team.most * team.size * 4;
    all_.add_symmetric(std::make_shared<const Symmetric>(Symmetric{0, rank, bytes, std::move(symmetric), {}}));
  }

  void run() {
    Random random{42};  // the same on all ranks
    for (int round = 0; round < team_.rounds; ++round) {
      const std::uint32_t which = random(8);
      const std::int64_t count = random(4) == 0 ? random(4) : random(static_cast<std::uint32_t>(team_.most));
      const bool is_symmetric = random(3) == 0;
      one(which, count, is_symmetric, round, static_cast<int>(random(static_cast<std::uint32_t>(team_.size))));
    }
  }

 private:
  static std::vector<Control*> controls(const std::vector<char*>& segments) {
    std::vector<Control*> all;
    for (char* segment : segments) {
      all.push_back(reinterpret_cast<Control*>(segment));
    }
    return all;
  }

  std::int32_t sum(int round, std::int64_t i) const {
    std::uint32_t sum = 0;
    for (int r = 0; r < team_.size; ++r) {
      sum += static_cast<std::uint32_t>(value_of(r, round, i));
    }
    return static_cast<std::int32_t>(sum);
  }

  std::int32_t* memory(bool is_symmetric, std::vector<std::int32_t>& own, std::int64_t count) {
    own.assign(static_cast<std::size_t>(count) + 1, -1);
    return is_symmetric ? symmetric_ : own.data();
  }

  void one(std::uint32_t which, std::int64_t count, bool is_symmetric, int round, int source) {
    std::vector<std::int32_t> first, second(static_cast<std::size_t>(count) + 1, -1);
    const std::int64_t all = count * team_.size;
    bool is_right = true;
    if (which == 0) {
      require(all_.barrier(), "barrier", round);
    } else if (which <= 3) {
      std::int32_t* const data = memory(is_symmetric, first, count);
      for (std::int64_t i = 0; i < count; ++i) data[i] = value_of(rank_, round, i);
      std::int32_t* const out = which == 1 ? second.data() : data;
      is_right = all_.all_reduce(data, out, {count, Element::int32, Reduction::sum});
      for (std::int64_t i = 0; i < count; ++i) is_right = is_right && out[i] == sum(round, i);
      require(is_right, "all_reduce", round);
    } else if (which == 4) {
      std::int32_t* const data = memory(is_symmetric, first, all);
      for (std::int64_t i = 0; i < all; ++i) data[i] = value_of(rank_, round, i);
      is_right = all_.reduce_scatter(data, second.data(), {count, Element::int32, Reduction::sum});
      for (std::int64_t i = 0; i < count; ++i) is_right = is_right && second[i] == sum(round, rank_ * count + i);
      require(is_right, "reduce_scatter", round);
    } else if (which <= 6) {
      std::int32_t* const data = memory(is_symmetric, first, all);
      for (std::int64_t i = 0; i < count; ++i) second[i] = value_of(rank_, round, i);
      is_right = all_.all_gather(second.data(), data, count * 4);
      for (int r = 0; r < team_.size; ++r) {
        for (std::int64_t i = 0; i < count; ++i) {
          is_right = is_right && data[r * count + i] == value_of(r, round, i);
        }
      }
      require(is_right, "all_gather", round);
    } else {
      std::int32_t* const data = memory(is_symmetric, first, count);
      for (std::int64_t i = 0; i < count; ++i) data[i] = value_of(rank_, round, i);
      is_right = all_.broadcast(data, count * 4, source);
      for (std::int64_t i = 0; i < count; ++i) is_right = is_right && data[i] == value_of(source, round, i);
      require(is_right, "broadcast", round);
    }
  }

  const Team team_;
  const int rank_;
  Alone alone_;
  Phases phases_;
  Collectives all_;
  std::int32_t* symmetric_;
};

void run(const Team& team) {
  std::vector<std::unique_ptr<Pages>> pages;
  std::vector<char*> segments, symmetric;
  for (int r = 0; r < team.size; ++r) {
    pages.push_back(std::make_unique<Pages>(SlotLayout{team.tuning.slot_bytes}.segment_bytes()));
    segments.push_back(pages.back()->data);
    pages.push_back(std::make_unique<Pages>((team.most * team.size * 4 + 4095) / 4096 * 4096));
    symmetric.push_back(pages.back()->data);
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
