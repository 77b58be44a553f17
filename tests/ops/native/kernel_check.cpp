// A check of the CPU Adam kernels without torch or Python, for machines that have neither: cross-built
// and run in an emulator it tests the instruction sets of another architecture. Prints what it
// compared; exit status 1 on the first difference beyond the bound.
//
//   g++ -std=c++17 -O3 -ffp-contract=off -Icsrc tests/ops/native/kernel_check.cpp csrc/kernels/cpu/*.cpp

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/cpu/adam.h"

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
  return dtype == DType::float32 ? std::ldexp(1, -24) : dtype == DType::bfloat16 ? std::ldexp(1, -8) : std::ldexp(1, -11);
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

bool check(Isa isa, DType p, DType g, DType m, std::int64_t numel, bool adamw_mode) {
  const AdamOptions options{3, 1e-2, 0.9, 0.999, 1e-8, 0.01, adamw_mode, true};
  Random random;
  auto param = make(p, numel, false, random), grad = make(g, numel, false, random);
  auto first = make(m, numel, false, random), second = make(m, numel, true, random);
  const auto old_param = param, old_first = first, old_second = second;
  const AdamKernel kernel = find_adam_update(isa, p, g, m);
  const auto coefficients = adam_coefficients(options);
  const std::int64_t cut = numel / 3;  // two pieces: positions must not matter
  kernel({param.data(), grad.data(), first.data(), second.data()}, 0, cut, coefficients);
  kernel({param.data(), grad.data(), first.data(), second.data()}, cut, numel, coefficients);
  for (std::int64_t i = 0; i < numel; ++i) {
    const double p0 = to_double(old_param.data(), p, i), m0 = to_double(old_first.data(), m, i);
    const double v0 = to_double(old_second.data(), m, i);
    const double gradient = to_double(grad.data(), g, i) + (adamw_mode ? 0 : options.weight_decay * p0);
    const double m1 = options.beta1 * m0 + (1 - options.beta1) * gradient;
    const double v1 = options.beta2 * v0 + (1 - options.beta2) * gradient * gradient;
    const double c1 = 1 - std::pow(options.beta1, 3), c2 = 1 - std::pow(options.beta2, 3);
    const double decay = adamw_mode ? 1 - options.lr * options.weight_decay : 1;
    const double change = options.lr / c1 * m1 / (std::sqrt(v1 / c2) + options.eps);
    const double expected[] = {decay * p0 - change, m1, v1};
    const double actual[] = {to_double(param.data(), p, i), to_double(first.data(), m, i),
                             to_double(second.data(), m, i)};
    const DType stored[] = {p, m, m};
    // Sixteen roundings of each term in float, and one of the storage; 2^-24 is a half's last place.
    const double terms[] = {std::fabs(p0) + 20 * std::fabs(change) + options.lr, 1, 1 + v0};
    for (int k = 0; k < 3; ++k) {
      const double bound = 16 * roundoff(DType::float32) * terms[k] + roundoff(stored[k]) * std::fabs(expected[k]) +
                           (stored[k] == DType::float16 ? std::ldexp(1, -24) : 0);
      if (!(std::fabs(actual[k] - expected[k]) <= bound)) {
        std::printf("%s: value %d of element %lld of %lld is %.9g, expected %.9g\n", isa_name(isa), k,
                    static_cast<long long>(i), static_cast<long long>(numel), actual[k], expected[k]);
        return false;
      }
    }
  }
  return true;
}

bool check_rollback(Isa isa, std::int64_t numel) {
  const AdamOptions options{3, 1e-2, 0.9, 0.999, 1e-8, 0.01, true, true};
  Random random;
  const DType f = DType::float32;
  auto param = make(f, numel, false, random), grad = make(f, numel, false, random);
  auto first = make(f, numel, false, random), second = make(f, numel, true, random);
  const auto old_param = param, old_first = first, old_second = second;
  const AdamTensors tensors{param.data(), grad.data(), first.data(), second.data()};
  const auto coefficients = adam_coefficients(options);
  find_adam_update(isa, f, f, f)(tensors, 0, numel, coefficients);
  find_adam_rollback(isa)(tensors, 0, numel, coefficients);
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

}  // namespace

int main() {
  const DType types[] = {DType::float32, DType::bfloat16, DType::float16};
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) {
      continue;
    }
    int checked = 0;
    for (const DType p : types) {
      for (const DType g : types) {
        for (const DType m : {DType::float32, p}) {
          for (const std::int64_t numel : {0, 1, 3, 15, 16, 17, 31, 1000}) {
            if (!check(isa, p, g, m, numel, true) || !check(isa, p, g, m, numel, false) ||
                !check_rollback(isa, numel)) {
              return 1;
            }
            ++checked;
          }
        }
      }
    }
    std::printf("%s: %d combinations\n", isa_name(isa), checked);
  }
  return 0;
}
