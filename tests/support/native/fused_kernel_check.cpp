// Runs the fused CUDA kernels on the host, through cuda_on_host/, compares them with plain loops over the same formulas,
// and checks how they divide the work. Prints the comparisons; exit status 1 at the first difference.
//
//   g++ -std=c++17 -ffp-contract=off -Icsrc -Itests/support/native/cuda_on_host
//       tests/support/native/fused_kernel_check.cpp -x c++ csrc/kernels/cuda/*.cu

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/fused_lamb.h"
#include "kernels/cuda/multi_tensor.cuh"
#include "kernels/formulas/amsgrad.h"
#include "kernels/formulas/lion.h"

#undef ACCEL_INLINE
#undef ACCEL_FORMULA_NAMESPACE
#define ACCEL_INLINE inline
#define ACCEL_FORMULA_NAMESPACE plain
namespace plain {
using accel::cuda::broadcast, accel::cuda::multiply_add, accel::cuda::sign_of, accel::cuda::square_root;
using F32 = float;
using accel::AdamCoefficients, accel::LambCoefficients, accel::LionCoefficients;
}  // namespace plain
#include "kernels/formulas/amsgrad.h"
#include "kernels/formulas/lamb.h"
#include "kernels/formulas/lion.h"

namespace {

using namespace accel;
using namespace accel::cuda;

[[noreturn]] void fail(const char* what, std::int64_t a = 0, std::int64_t b = 0) {
  std::printf("wrong: %s (%lld, %lld)\n", what, static_cast<long long>(a), static_cast<long long>(b));
  std::exit(1);
}

void require(bool holds, const char* what, std::int64_t a = 0, std::int64_t b = 0) {
  if (!holds) {
    fail(what, a, b);
  }
}

// Memory ---------------------------------------------------------------------------------------------------------

struct Random {
  std::uint64_t state = 1;
  float operator()() {  // in (-1, 1); Knuth's MMIX generator
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int64_t>(state) / 9223372036854775808.0);
  }
};

float read(const void* memory, DType type, std::int64_t i) {
  switch (type) {
    case DType::float32:
      return static_cast<const float*>(memory)[i];
    case DType::bfloat16:
      return to_float(static_cast<const BFloat16*>(memory)[i]);
    default:
      return to_float(static_cast<const Float16*>(memory)[i]);
  }
}

void write(void* memory, DType type, std::int64_t i, float value) {
  switch (type) {
    case DType::float32:
      static_cast<float*>(memory)[i] = value;
      break;
    case DType::bfloat16:
      from_float(value, static_cast<BFloat16*>(memory)[i]);
      break;
    default:
      from_float(value, static_cast<Float16*>(memory)[i]);
  }
}

// An array `offset` elements behind an aligned address, between guards that nobody may touch.
class Array {
 public:
  static constexpr std::size_t kGuard = 64;

  Array(DType type, std::int64_t numel, int offset) : type_(type), bytes_(numel * size_bytes(type)) {
    memory_.assign(2 * kGuard + 16 + offset * size_bytes(type) + bytes_, '\x5a');
    auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuard;
    address = (address + 15) / 16 * 16 + offset * size_bytes(type);
    begin_ = address - reinterpret_cast<std::uintptr_t>(memory_.data());
  }
  void* data() { return memory_.data() + begin_; }
  const void* data() const { return memory_.data() + begin_; }
  float get(std::int64_t i) const { return read(data(), type_, i); }
  void set(std::int64_t i, float value) { write(data(), type_, i, value); }
  DType type() const { return type_; }
  bool guards_are_whole() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != '\x5a') {
        return false;
      }
    }
    return true;
  }
  bool same_bits(const Array& other) const { return std::memcmp(data(), other.data(), bytes_) == 0; }

 private:
  DType type_;
  std::size_t bytes_;
  std::size_t begin_;
  std::vector<char> memory_;
};

constexpr int kArrays = 2 + kMaxStates;  // parameter, gradient, states; an optimizer may leave some states alone

struct Shape {
  std::int64_t numel;
  StoredTypes types;
  int offsets[kArrays];
};

// A parameter with all that belongs to it, twice: for the kernels, and for the plain loops.
struct Case {
  std::int64_t numel;
  StoredTypes types;
  std::vector<Array> arrays;  // parameter, gradient, states
  std::vector<Array> plain;
  float step;

  Case(const Shape& shape, Random& random) : numel(shape.numel), types(shape.types), step(0.0f) {
    const DType state = types.states_as_param ? types.param : DType::float32;
    const DType all[kArrays] = {types.param, types.grad, state, state, state};
    for (int k = 0; k < kArrays; ++k) {
      arrays.emplace_back(all[k], numel, shape.offsets[k]);
      plain.emplace_back(all[k], numel, 0);
      for (std::int64_t i = 0; i < numel; ++i) {
        const float value = random();
        arrays[k].set(i, k >= 3 ? value * value : value);
        plain[k].set(i, arrays[k].get(i));
      }
    }
  }
  DeviceTensor tensor(bool has_counter) {
    return {arrays[0].data(),
            arrays[1].data(),
            {arrays[2].data(), arrays[3].data(), arrays[4].data()},
            has_counter ? &step : nullptr,
            numel,
            types};
  }
  void require_same(const char* what) const {
    for (int k = 0; k < kArrays; ++k) {
      require(arrays[k].guards_are_whole(), what, numel, k);
      require(arrays[k].same_bits(plain[k]), what, numel, k);
    }
  }
};

constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16};

std::vector<Case> make_cases(Random& random) {
  std::vector<Case> cases;
  // Every combination of types, at lengths around those of vectors, blocks and chunks.
  for (const DType param : kTypes) {
    for (const DType grad : kTypes) {
      for (const bool as_param : {false, true}) {
        for (const std::int64_t numel : {1, 9, 2049}) {
          cases.emplace_back(Shape{numel, {param, grad, as_param}, {0, 0, 0, 0, 0}}, random);
        }
      }
    }
  }
  // Every way to lie in memory.
  const int offsets[][kArrays] = {{0, 0, 0, 0, 0}, {1, 1, 1, 1, 1}, {3, 3, 3, 3, 3}, {7, 7, 7, 7, 7},
                                  {1, 0, 0, 0, 0}, {0, 5, 1, 2, 3}, {0, 0, 0, 0, 1}};
  for (const auto& each : offsets) {
    for (const std::int64_t numel : {0, 1, 3, 4, 2047, 2048, 5000}) {
      for (const StoredTypes types :
           {StoredTypes{DType::float32, DType::float32, false}, StoredTypes{DType::bfloat16, DType::bfloat16, true},
            StoredTypes{DType::bfloat16, DType::float32, false}}) {
        cases.emplace_back(Shape{numel, types, {each[0], each[1], each[2], each[3], each[4]}}, random);
      }
    }
  }
  return cases;
}

std::vector<Case> many_cases(Random& random) {  // more than a table holds, and one that is many chunks long
  std::vector<Case> cases;
  for (int i = 0; i < 1500; ++i) {
    cases.emplace_back(Shape{i % 5, {DType::float32, DType::float32, false}, {}}, random);
  }
  cases.emplace_back(Shape{100001, {DType::float32, DType::float32, false}, {}}, random);
  return cases;
}

std::vector<DeviceTensor> tensors_of(std::vector<Case>& cases, bool has_counters) {
  std::vector<DeviceTensor> tensors;
  for (Case& one : cases) {
    tensors.push_back(one.tensor(has_counters));
  }
  return tensors;
}

template <class Formula>
void run_plainly(Case& one, const Formula& formula, float grad_factor) {
  for (std::int64_t i = 0; i < one.numel; ++i) {
    float param = one.plain[0].get(i);
    float states[Formula::kStates];
    for (int k = 0; k < Formula::kStates; ++k) {
      states[k] = one.plain[2 + k].get(i);
    }
    formula(param, grad_factor * one.plain[1].get(i), states);
    one.plain[0].set(i, param);
    for (int k = 0; k < Formula::kStates; ++k) {
      one.plain[2 + k].set(i, states[k]);
    }
  }
}

// The optimizers ---------------------------------------------------------------------------------------------------

// Adam or AMSGrad: they take the same.
template <class Formula>
void check_adam(decltype(fused_update<Adam>)* update, const char* name) {
  Random random;
  for (const bool adamw_mode : {true, false}) {
    const AdamOptions options{1e-2, 0.9, 0.99, 1e-6, 0.1, adamw_mode, true};
    for (const bool many : {false, true}) {
      std::vector<Case> cases = many ? many_cases(random) : make_cases(random);
      const auto tensors = tensors_of(cases, false);
      require(update(tensors.data(), tensors.size(), options, 3.0, {}, 65536, nullptr) == 0, "status");
      for (Case& one : cases) {
        run_plainly(one, Formula(adam_coefficients(options, 3.0)), 1.0f);
        one.require_same(name);
      }
    }
  }
  std::printf("%s: as plain loops\n", name);
}

template <class Formula>
void check_adam_on_device_numbers(decltype(fused_update<Adam>)* update, const char* name) {
  Random random;
  const AdamOptions options{123.0, 0.9, 0.99, 1e-6, 0.1, true, true};
  AdamOptions used = options;
  const float lr = 1e-2f;
  used.lr = static_cast<double>(lr);
  const float scale = 3.0f;
  const Controls controls{nullptr, nullptr, &scale, &lr, true};
  std::vector<Case> cases = make_cases(random);
  std::vector<float*> steps;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cases[i].step = static_cast<float>(i % 3);
    steps.push_back(&cases[i].step);
  }
  const auto tensors = tensors_of(cases, true);
  for (int round = 0; round < 2; ++round) {
    require(advance_steps(steps.data(), steps.size(), controls, nullptr) == 0, "status");
    require(update(tensors.data(), tensors.size(), options, 0.0, controls, 2048, nullptr) == 0, "status");
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const float step = static_cast<float>(i % 3 + 1 + round);
      require(cases[i].step == step, "step", i);
      run_plainly(cases[i], Formula(adam_coefficients(used, step)), -(1.0f / scale));
      cases[i].require_same(name);
    }
  }
  std::printf("%s: learning rate, steps, scale and direction from the device\n", name);
}

void check_skipping() {
  Random random;
  const int noop = 1;
  const float inf = 1.0f;
  for (const Controls& controls :
       {Controls{&noop, nullptr, nullptr, nullptr, false}, Controls{nullptr, &inf, nullptr, nullptr, false}}) {
    std::vector<Case> cases = make_cases(random);
    std::vector<float*> steps;
    for (Case& one : cases) {
      steps.push_back(&one.step);
    }
    const auto tensors = tensors_of(cases, true);
    std::vector<double> workspace(lamb_workspace_bytes(tensors.data(), tensors.size(), 2048) / 8 + 1);
    const AdamOptions adam{1e-2, 0.9, 0.99, 1e-6, 0.1, true, true};
    const LambOptions lamb{1e-2, 0.9, 0.99, 1e-6, 0.1, true};
    require(advance_steps(steps.data(), steps.size(), controls, nullptr) == 0, "status");
    for (const auto update : {fused_update<Adam>, fused_update<Amsgrad>}) {
      require(update(tensors.data(), tensors.size(), adam, 0.0, controls, 2048, nullptr) == 0, "status");
    }
    require(
        fused_update<Lion>(tensors.data(), tensors.size(), {1e-2, 0.9, 0.99, 0.1}, 0.0, controls, 2048, nullptr) == 0,
        "status");
    require(fused_lamb(tensors.data(), tensors.size(), lamb, 0.0, controls, 2048, workspace.data(), nullptr) == 0,
            "status");
    for (const Case& one : cases) {
      require(one.step == 0.0f, "a skipped step");
      one.require_same("skipped");
    }
  }
  std::printf("skipping: nothing is changed\n");
}

void check_lion() {
  Random random;
  const LionOptions options{1e-2, 0.9, 0.99, 0.1};
  for (const bool many : {false, true}) {
    std::vector<Case> cases = many ? many_cases(random) : make_cases(random);
    const auto tensors = tensors_of(cases, false);
    require(fused_update<Lion>(tensors.data(), tensors.size(), options, 0.0, {}, 4096, nullptr) == 0, "status");
    for (Case& one : cases) {
      run_plainly(one, plain::LionFormula(Lion::coefficients(options)), 1.0f);
      one.require_same("lion");
    }
  }
  std::printf("lion: as plain loops\n");
}

// Moments to the bit; parameters but for the order in which squares are added up in double, which can change the
// trust ratio by one unit of float.
void require_like_plain_lamb(Case& one, const LambCoefficients& c) {
  const plain::LambFormula formula(c);
  double param_squares = 0.0, direction_squares = 0.0;
  std::vector<float> directions(one.numel);
  for (std::int64_t i = 0; i < one.numel; ++i) {
    float moments[] = {one.plain[2].get(i), one.plain[3].get(i)};
    formula.update_moments(one.plain[1].get(i), moments);
    one.plain[2].set(i, moments[0]);
    one.plain[3].set(i, moments[1]);
    const float stored[] = {one.plain[2].get(i), one.plain[3].get(i)};
    const double param = one.plain[0].get(i);
    directions[i] = formula.direction(one.plain[0].get(i), stored);
    param_squares += param * param;
    direction_squares += static_cast<double>(directions[i]) * directions[i];
  }
  const float minus_step = c.minus_lr * Lamb::factor(param_squares, direction_squares);
  const double roundoff = one.types.param == DType::float32   ? std::ldexp(1, -23)
                          : one.types.param == DType::float16 ? std::ldexp(1, -10)
                                                              : std::ldexp(1, -7);
  for (std::int64_t i = 0; i < one.numel; ++i) {
    const double expected = multiply_add(minus_step, directions[i], one.plain[0].get(i));
    const double bound =
        roundoff * std::fabs(expected) + 1e-6 * std::fabs(minus_step * directions[i]) + std::ldexp(1, -24);
    require(std::fabs(one.arrays[0].get(i) - expected) <= bound, "lamb's parameter", one.numel, i);
    one.plain[0].set(i, one.arrays[0].get(i));
  }
  one.require_same("lamb");
}

void check_lamb() {
  Random random;
  const LambOptions options{1e-1, 0.9, 0.99, 1e-6, 0.1, true};
  for (const bool many : {false, true}) {
    std::vector<Case> cases = many ? many_cases(random) : make_cases(random);
    std::vector<Case> again = cases;
    for (std::vector<Case>* const which : {&cases, &again}) {
      const auto tensors = tensors_of(*which, false);
      const std::size_t bytes = lamb_workspace_bytes(tensors.data(), tensors.size(), 2048);
      // A memory of just that size, so that a sanitizer sees what goes beyond.
      const std::unique_ptr<void, void (*)(void*)> workspace(std::malloc(bytes), std::free);
      require(fused_lamb(tensors.data(), tensors.size(), options, 3.0, {}, 2048, workspace.get(), nullptr) == 0,
              "status");
    }
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (int k = 0; k < kArrays; ++k) {
        require(cases[i].arrays[k].same_bits(again[i].arrays[k]), "two runs of lamb", cases[i].numel, k);
      }
      require_like_plain_lamb(cases[i], Lamb::coefficients(options, 3.0));
    }
  }
  std::printf("lamb: as plain loops, twice the same\n");
}

// The cutting of work ----------------------------------------------------------------------------------------------

void check_parts() {
  for (int vector : {4, 8}) {
    for (int count = 0; count < 40; ++count) {
      for (int head = -1; head < vector; ++head) {
        const ChunkParts parts = chunk_parts(count, head, vector);
        std::vector<int> seen(count);
        for (int i = parts.head; i < parts.tail; ++i) {
          ++seen[i];
        }
        for (int i = 0; i < single_elements(parts); ++i) {
          ++seen[single_element(parts, i)];
        }
        for (int i = 0; i < count; ++i) {
          require(seen[i] == 1, "each element once", count, i);
        }
        require((parts.tail - parts.head) % vector == 0, "whole vectors", count, head);
        require(head >= 0 || parts.head == count, "no vectors where arrays are not aligned alike", count, head);
        require(head < 0 || single_elements(parts) < 2 * vector, "few single elements", count, head);
      }
    }
  }
  for (std::uintptr_t address = 0; address < 64; address += 2) {
    require((address + 2 * elements_to_alignment(address, 2, 8)) % 16 == 0, "aligned", address);
    if (address % 4 == 0) {
      require((address + 4 * elements_to_alignment(address, 4, 4)) % 16 == 0, "aligned", address);
    }
  }
}

void check_tables() {
  TensorTable<5> table;
  require(sizeof(table) + kControlBytes <= kParameterBytes + 64, "a table fits", sizeof(table));
  table.count = 5;
  const std::int64_t numels[] = {1, 2048, 2049, 10 * 2048, 3};
  std::memcpy(table.numel, numels, sizeof(numels));
  number_chunks(table, 2048);
  require(table.chunks() == 1 + 1 + 2 + 10 + 1, "chunks");
  std::vector<std::int64_t> covered(5);
  for (int low : {0, -1}) {
    for (std::uint32_t chunk = 0, last = 0; chunk < table.chunks(); ++chunk) {
      const int tensor = find_tensor(table.first_chunk, table.count, chunk, low == 0 ? 0 : static_cast<int>(last));
      last = tensor;
      require(table.first_chunk[tensor] <= chunk && chunk < table.first_chunk[tensor + 1], "the chunk's tensor", chunk);
      const std::int64_t begin = static_cast<std::int64_t>(chunk - table.first_chunk[tensor]) * 2048;
      covered[tensor] += std::min<std::int64_t>(2048, numels[tensor] - begin);
    }
  }
  for (int i = 0; i < 5; ++i) {
    require(covered[i] == 2 * numels[i], "every element once", i);
  }
  require(balanced_chunk(1, 600, 65536) == kChunkUnit, "at least a unit");
  require(balanced_chunk(std::int64_t{1} << 30, 600, 65536) == 65536, "at most what was asked for");
  require(balanced_chunk(std::int64_t{1} << 30, 600, 5000) == 4096, "whole units");
  require(balanced_chunk(std::int64_t{1} << 30, 600, 1) == kChunkUnit, "at least a unit");
  require(balanced_chunk(7000000, 528, 65536) == kChunkUnit, "small enough for all blocks");
  require(fixed_chunk(1) == kChunkUnit && fixed_chunk(2049) == 2 * kChunkUnit, "fixed chunks");
  require(fixed_chunk(std::int64_t{1} << 60) == kLargestChunk, "fixed chunks");

  std::vector<DeviceTensor> tensors;
  for (int i = 0; i < 2000; ++i) {
    DeviceTensor tensor{};
    tensor.numel = i % 7;
    tensor.types = {i % 3 == 0 ? DType::float32 : DType::bfloat16, DType::float32, false};
    tensors.push_back(tensor);
  }
  std::int64_t count = 0, launches = 0;
  const int code = type_code(tensors[0].types);
  const auto fill = [](auto, int, const DeviceTensor&) {};
  const auto chunk = [](std::int64_t) { return kChunkUnit; };
  const auto see = [&](const TensorTable<5>& one) {
    ++launches;
    count += one.count;
    require(one.count <= one.kCapacity && one.chunks() == static_cast<std::uint32_t>(one.count), "a table", one.count);
    return 0;
  };
  require(for_each_table<5>(tensors.data(), tensors.size(), code, fill, chunk, see) == 0, "status");
  const std::int64_t expected = 667 - 96;  // every third, without those of no elements
  require(count == expected && launches == ceil_divide(expected, TensorTable<5>::kCapacity), "all tables", count,
          launches);
  const auto refuse = [](const TensorTable<5>&) { return 7; };
  require(for_each_table<5>(tensors.data(), tensors.size(), code, fill, chunk, refuse) == 7, "an error ends it");
  std::printf("work: every element once\n");
}

}  // namespace

int main() {
  check_parts();
  check_tables();
  check_adam<plain::AdamFormula>(fused_update<Adam>, "adam");
  check_adam<plain::AmsgradFormula>(fused_update<Amsgrad>, "amsgrad");
  check_adam_on_device_numbers<plain::AdamFormula>(fused_update<Adam>, "adam");
  check_adam_on_device_numbers<plain::AmsgradFormula>(fused_update<Amsgrad>, "amsgrad");
  check_lion();
  check_lamb();
  check_skipping();
  std::printf("%d launches\n", cuda_on_host::launches);
}
