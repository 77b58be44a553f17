// A check of the CPU Adam kernels without torch or Python, for machines that have neither: cross-built
// and run in an emulator it tests the instruction sets of another architecture. Prints what it
// compared; exit status 1 on the first difference beyond the bound.
//
//   g++ -std=c++17 -O3 -ffp-contract=off -Icsrc tests/support/native/kernel_check.cpp csrc/kernels/cpu/*.cpp

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <vector>

#include "kernels/cpu/adam.h"
#include "kernels/cpu/norm.h"

// The random numbers themselves, as the baseline makes them; test_packed_states.py compares all.
#define ACCEL_TARGET_BASELINE
#include "kernels/cpu/simd_begin.h"
// The order matters.
#include "kernels/cpu/codecs_inl.h"
#include "kernels/cpu/simd_end.h"

namespace {

using namespace accel;
using namespace accel::cpu;

// Exact conversions in double, one value at a time.
double to_double(const void* memory, DType dtype, std::int64_t i) {
  if (dtype == DType::float32) {
    return static_cast<const float*>(memory)[i];
  }
  const std::uint16_t bits = static_cast<const std::uint16_t*>(memory)[i];
  if (dtype == DType::bfloat16) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

double roundoff(DType dtype) {
  return dtype == DType::float32    ? std::ldexp(1, -24)
         : dtype == DType::bfloat16 ? std::ldexp(1, -8)
                                    : std::ldexp(1, -11);
}

struct Random {
  std::uint64_t state = 1;
  double operator()() {  // in (-1, 1); Knuth's MMIX generator
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<std::int64_t>(state)) / 9223372036854775808.0;
  }
};

std::vector<char> make(DType dtype, std::int64_t numel, bool positive, Random& random) {
  std::vector<char> memory(numel * size_bytes(dtype));
  for (std::int64_t i = 0; i < numel; ++i) {
    float value = static_cast<float>(random());
    value = positive ? value * value + 1e-3f : value;
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (dtype == DType::float32) {
      std::memcpy(&memory[i * 4], &value, 4);
    } else {
      // Cutting off is good enough for inputs; a normal half has its exponent 112 lower.
      const std::uint32_t half = ((bits >> 16) & 0x8000u) | (((bits & 0x7fffffffu) - (112u << 23)) >> 13);
      const bool tiny = (bits & 0x7fffffffu) < (113u << 23);
      const std::uint16_t narrow = dtype == DType::bfloat16 ? bits >> 16 : tiny ? 0 : half;
      std::memcpy(&memory[i * 2], &narrow, 2);
    }
  }
  return memory;
}

AdamOptions make_options(bool adamw_mode) { return {1e-2, 0.9, 0.999, 1e-8, 0.01, adamw_mode, true}; }

constexpr double kStep = 3;

// What one update does to one element, in double: {param, exp_avg, exp_avg_sq}, and the size of the
// terms that each is made of.
struct Expected {
  double values[3];
  double terms[3];
};

Expected expect(const AdamOptions& options, double p0, double gradient, double m0, double v0) {
  gradient += options.adamw_mode ? 0 : options.weight_decay * p0;
  const double m1 = options.beta1 * m0 + (1 - options.beta1) * gradient;
  const double v1 = options.beta2 * v0 + (1 - options.beta2) * gradient * gradient;
  const double c1 = 1 - std::pow(options.beta1, kStep), c2 = 1 - std::pow(options.beta2, kStep);
  const double decay = options.adamw_mode ? 1 - options.lr * options.weight_decay : 1;
  const double change = options.lr / c1 * m1 / (std::sqrt(v1 / c2) + options.eps);
  return {{decay * p0 - change, m1, v1}, {std::fabs(p0) + 20 * std::fabs(change) + options.lr, 1, 1 + v0}};
}

// Sixteen roundings of each term in float, and one of the storage; 2^-24 is a half's last place.
double bound_of(const Expected& expected, int k, DType stored) {
  return 16 * roundoff(DType::float32) * expected.terms[k] + roundoff(stored) * std::fabs(expected.values[k]) +
         (stored == DType::float16 ? std::ldexp(1, -24) : 0);
}

bool is_within(Isa isa, const char* what, std::int64_t i, double actual, double expected, double bound) {
  if (std::fabs(actual - expected) <= bound) {
    return true;
  }
  std::printf("%s: %s of element %lld is %.9g, expected %.9g within %.2g\n", isa_name(isa), what,
              static_cast<long long>(i), actual, expected, bound);
  return false;
}

const char* const kValueNames[] = {"param", "exp_avg", "exp_avg_sq"};

// Where a range of `numel` elements may be cut in two.
std::int64_t cut_of(std::int64_t numel) { return numel / 3 / kQuantBlock * kQuantBlock; }

bool check(Isa isa, DType p, DType g, StateStorage storage, std::int64_t numel, bool adamw_mode) {
  const AdamOptions options = make_options(adamw_mode);
  const DType m = storage == StateStorage::float32 ? DType::float32 : p;
  Random random;
  auto param = make(p, numel, false, random), grad = make(g, numel, false, random);
  auto first = make(m, numel, false, random), second = make(m, numel, true, random);
  std::vector<char> copy(numel * 2);
  const auto old_param = param, old_grad = grad, old_first = first, old_second = second;
  const OptimizerKernel kernel = find_update<accel::Adam>(isa, {p, g, storage});
  const AdamCoefficients coefficients = adam_coefficients(options, kStep);
  const OptimizerTensors tensors{param.data(),   grad.data(), {first.data(), second.data()}, {}, copy.data(), g,
                                 DType::bfloat16};
  const Pass pass{-0.5f, true, 0};
  const std::int64_t cut = cut_of(numel);  // two pieces: positions must not matter
  kernel(tensors, cut, numel, &coefficients, pass);
  kernel(tensors, 0, cut, &coefficients, pass);
  for (std::int64_t i = 0; i < numel; ++i) {
    const Expected expected =
        expect(options, to_double(old_param.data(), p, i), -0.5 * to_double(old_grad.data(), g, i),
               to_double(old_first.data(), m, i), to_double(old_second.data(), m, i));
    const double actual[] = {to_double(param.data(), p, i), to_double(first.data(), m, i),
                             to_double(second.data(), m, i)};
    const DType stored[] = {p, m, m};
    for (int k = 0; k < 3; ++k) {
      if (!is_within(isa, kValueNames[k], i, actual[k], expected.values[k], bound_of(expected, k, stored[k]))) {
        return false;
      }
    }
    if (!is_within(isa, "copy", i, to_double(copy.data(), DType::bfloat16, i), actual[0],
                   roundoff(DType::bfloat16) * std::fabs(actual[0])) ||
        !is_within(isa, "zeroed gradient", i, to_double(grad.data(), g, i), 0, 0)) {
      return false;
    }
  }
  return true;
}

bool check_rollback(Isa isa, std::int64_t numel) {
  Random random;
  const DType f = DType::float32;
  auto param = make(f, numel, false, random), grad = make(f, numel, false, random);
  auto first = make(f, numel, false, random), second = make(f, numel, true, random);
  const auto old_param = param, old_first = first, old_second = second;
  const OptimizerTensors tensors{param.data(), grad.data(), {first.data(), second.data()}, {}, nullptr, f, f};
  const AdamCoefficients coefficients = adam_coefficients(make_options(true), kStep);
  const Pass pass{1.0f, false, 0};
  find_update<accel::Adam>(isa, {f, f, StateStorage::float32})(tensors, 0, numel, &coefficients, pass);
  find_adam_rollback(isa)(tensors, 0, numel, &coefficients, pass);
  for (std::int64_t i = 0; i < numel; ++i) {
    const double off_param = to_double(param.data(), f, i) - to_double(old_param.data(), f, i);
    const double off_first = to_double(first.data(), f, i) - to_double(old_first.data(), f, i);
    const double off_second = to_double(second.data(), f, i) - to_double(old_second.data(), f, i);
    if (std::fabs(off_param) + std::fabs(off_first) + std::fabs(off_second) > 1e-6) {
      std::printf("%s: rollback of element %lld is off\n", isa_name(isa), static_cast<long long>(i));
      return false;
    }
  }
  return true;
}

// States of bfloat16, rounded at random: one of the two neighbours, so within a whole last place.
bool check_stochastic(Isa isa, DType p, std::int64_t numel) {
  const AdamOptions options = make_options(true);
  Random random;
  auto param = make(p, numel, false, random), grad = make(DType::float32, numel, false, random);
  auto first = make(DType::bfloat16, numel, false, random), second = make(DType::bfloat16, numel, true, random);
  const auto old_param = param, old_first = first, old_second = second;
  const OptimizerTensors tensors{param.data(),   grad.data(),   {first.data(), second.data()}, {}, nullptr,
                                 DType::float32, DType::float32};
  const AdamCoefficients coefficients = adam_coefficients(options, kStep);
  const OptimizerKernel kernel = find_update<accel::Adam>(isa, {p, DType::float32, StateStorage::stochastic_bfloat16});
  kernel(tensors, 0, numel, &coefficients, {1.0f, false, random_key(1, 2, 3)});
  for (std::int64_t i = 0; i < numel; ++i) {
    const Expected expected =
        expect(options, to_double(old_param.data(), p, i), to_double(grad.data(), DType::float32, i),
               to_double(old_first.data(), DType::bfloat16, i), to_double(old_second.data(), DType::bfloat16, i));
    const double actual[] = {to_double(param.data(), p, i), to_double(first.data(), DType::bfloat16, i),
                             to_double(second.data(), DType::bfloat16, i)};
    for (int k = 0; k < 3; ++k) {
      const double bound = k == 0 ? bound_of(expected, k, p)
                                  : bound_of(expected, k, DType::float32) +
                                        2 * roundoff(DType::bfloat16) * std::fabs(expected.values[k]);
      if (!is_within(isa, kValueNames[k], i, actual[k], expected.values[k], bound)) {
        return false;
      }
    }
  }
  return true;
}

// Where zero lies on the scale of Blockwise8Bit's codes.
double zero_of(bool non_negative) { return std::ldexp(1, non_negative ? -31 : -15); }

// What a code of Blockwise8Bit stands for.
double decoded(std::uint8_t code, double scale, bool non_negative) {
  const int magnitude = non_negative ? code : code & 0x7f;
  const double place = std::ldexp(1 + (magnitude & 7) / 8.0, magnitude >> 3);
  const double value = (place - 1) * zero_of(non_negative) * scale;
  return !non_negative && (code & 0x80) ? -value : value;
}

struct Packed {
  std::vector<std::uint8_t> codes[2];
  std::vector<float> scales[2];

  explicit Packed(std::int64_t numel) {
    for (int k = 0; k < 2; ++k) {
      codes[k].resize(numel);
      scales[k].resize((numel + kQuantBlock - 1) / kQuantBlock);
    }
  }
  double value(int k, std::int64_t i) const { return decoded(codes[k][i], scales[k][i / kQuantBlock], k == 1); }
};

// Two updates from zero, the second from what the first has packed, cut in two pieces.
bool check_packed(Isa isa, DType p, DType g, std::int64_t numel) {
  const AdamOptions options = make_options(true);
  const AdamCoefficients coefficients = adam_coefficients(options, kStep);
  Random random;
  auto param = make(p, numel, false, random);
  const auto grad = make(g, numel, false, random);
  const OptimizerKernel kernel = find_update<accel::Adam>(isa, {p, g, StateStorage::blockwise_8bit});
  Packed packed(numel);
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto old_param = param;
    const Packed old = packed;
    auto gradient = grad;
    const OptimizerTensors tensors{param.data(),
                                   gradient.data(),
                                   {packed.codes[0].data(), packed.codes[1].data()},
                                   {packed.scales[0].data(), packed.scales[1].data()},
                                   nullptr,
                                   g,
                                   DType::float32};
    const Pass pass{1.0f, false, random_key(1, step, 0)};
    const std::int64_t cut = cut_of(numel);
    kernel(tensors, cut, numel, &coefficients, pass);
    kernel(tensors, 0, cut, &coefficients, pass);
    for (std::int64_t i = 0; i < numel; ++i) {
      const Expected expected = expect(options, to_double(old_param.data(), p, i), to_double(grad.data(), g, i),
                                       old.value(0, i), old.value(1, i));
      if (!is_within(isa, kValueNames[0], i, to_double(param.data(), p, i), expected.values[0],
                     bound_of(expected, 0, p))) {
        return false;
      }
      for (int k = 0; k < 2; ++k) {
        // Neighbouring codes are an eighth of their place apart at most.
        const double smallest = packed.scales[k][i / kQuantBlock] * zero_of(k == 1) / 8;
        const double bound =
            0.125 * std::fabs(expected.values[1 + k]) + smallest + bound_of(expected, 1 + k, DType::float32);
        if (!is_within(isa, kValueNames[1 + k], i, packed.value(k, i), expected.values[1 + k], bound)) {
          return false;
        }
      }
    }
  }
  return true;
}

bool check_norm(Isa isa, DType type, std::int64_t numel) {
  Random random;
  const auto values = make(type, numel, false, random);
  double expected = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    expected += to_double(values.data(), type, i) * to_double(values.data(), type, i);
  }
  const double sum = find_sum_of_squares(isa, type)(values.data(), numel);
  return is_within(isa, "sum of squares", numel, sum, expected, 2.0 * numel * std::ldexp(expected, -53));
}

// Keys of neighbouring updates and of places in neighbouring groups differ, and so do random bits, within a block and
// from block to block, on both sides of 2^32; the halves that two states take have nothing to do with each other.
bool check_random_bits() {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t step = 0; step < 20; ++step) {
      for (std::uint64_t place = 0; place < 20; ++place) {
        keys.insert(random_key(seed, step, place));
        keys.insert(random_key(seed, step, place + (std::uint64_t{1} << 32)));
      }
    }
  }
  if (keys.size() != 16000) {
    std::printf("%d of 16000 keys are different\n", static_cast<int>(keys.size()));
    return false;
  }
  constexpr std::int64_t kTurn = std::int64_t{1} << 32;
  constexpr int kCount = 4096;
  std::set<std::vector<std::uint32_t>> blocks;
  for (const std::uint64_t key : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32, random_key(1, 2, 3)}) {
    for (const std::int64_t start : {std::int64_t{0}, kTurn - kCount, kTurn, 2 * kTurn, 3 * kTurn - kCount}) {
      double mean = 0, product = 0;
      for (std::int64_t block = start; block < start + kCount; block += kQuantBlock) {
        std::vector<std::uint32_t> bits;
        baseline::RandomBits random(key, block);
        for (int offset = 0; offset < kQuantBlock; offset += baseline::kLanes) {
          const baseline::U32 lanes = random.next();
          for (int i = 0; i < baseline::kLanes; ++i) {
            bits.push_back(lanes[i]);
          }
        }
        for (const std::uint32_t one : bits) {
          mean += one / 4294967296.0 / kCount;
          product += ((one >> 16) / 65536.0 - 0.5) * ((one & 0xffff) / 65536.0 - 0.5) / kCount;
        }
        // In a block the mix is a permutation: no two are equal.
        if (std::set<std::uint32_t>(bits.begin(), bits.end()).size() != bits.size()) {
          std::printf("random bits repeat within a block\n");
          return false;
        }
        if (!blocks.insert(std::move(bits)).second) {
          std::printf("two keys, or two blocks, have the same random bits\n");
          return false;
        }
      }
      // A mean of uniform numbers is off by 1/sqrt(12 n) typically, one of products of two that are centred by
      // 1/(12 sqrt(n)); six times that is one in 10^9.
      if (std::fabs(mean - 0.5) > 6 / std::sqrt(12.0 * kCount) || std::fabs(product) > 6 / (12 * std::sqrt(kCount))) {
        std::printf("the mean of the random bits is %.4f, that of their halves' product %.5f\n", mean, product);
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main() {
  if (!check_random_bits()) {
    return 1;
  }
  const DType types[] = {DType::float32, DType::bfloat16, DType::float16};
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) {
      continue;
    }
    int checked = 0;
    for (const std::int64_t numel : {0, 1, 3, 15, 16, 17, 31, 255, 256, 257, 1000, 5000}) {
      for (const DType p : types) {
        for (const DType g : types) {
          for (const StateStorage storage : {StateStorage::float32, StateStorage::as_param}) {
            if (!check(isa, p, g, storage, numel, true) || !check(isa, p, g, storage, numel, false)) {
              return 1;
            }
            ++checked;
          }
          if (!check_packed(isa, p, g, numel)) {
            return 1;
          }
          ++checked;
        }
        if (!check_stochastic(isa, p, numel) || !check_norm(isa, p, numel)) {
          return 1;
        }
        checked += 2;
      }
      if (!check_rollback(isa, numel)) {
        return 1;
      }
      ++checked;
    }
    std::printf("%s: %d combinations\n", isa_name(isa), checked);
  }
  return 0;
}
