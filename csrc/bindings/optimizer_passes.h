// Running an optimizer's kernels over all tensors of an update, in even shares for torch's threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/optimizer.h"
#include "torch_c/parallel.h"

namespace accel {

// Threads take whole blocks, so that their borders are cache lines; a thread is worth waking for some ten thousand
// elements.
constexpr std::int64_t kBlockElements = 1024;
constexpr std::int64_t kGrainBlocks = 16;
static_assert(kBlockElements % cpu::kQuantBlock == 0, "kernels need ranges of whole quantisation blocks");

// Norms over a tensor are added up in pieces of this length, whatever the number of threads. A piece with its states
// stays in the second-level cache from the first pass to the second.
constexpr std::int64_t kPieceElements = 1 << 15;
static_assert(kPieceElements % cpu::kQuantBlock == 0, "kernels need ranges of whole quantisation blocks");

// One parameter, all checks done.
struct UpdateItem {
  cpu::OptimizerTensors tensors;
  cpu::StoredTypes types;
  std::int64_t numel;
  std::uint64_t place;  // of its random bits
};

// All parameters of an update, and the start of each in their concatenation.
template <class Kernel>
struct CheckedList {
  struct Item : UpdateItem {
    Kernel kernel;
  };
  std::vector<Item> items;
  std::vector<std::int64_t> starts = {0};

  // Call after the items are complete.
  void make_starts() {
    starts.assign(1, 0);
    starts.reserve(items.size() + 1);
    for (const Item& item : items) {
      // Padded, so that a share begins at a whole block of its tensor.
      const std::int64_t blocks = (item.numel + cpu::kQuantBlock - 1) / cpu::kQuantBlock;
      starts.push_back(starts.back() + blocks * cpu::kQuantBlock);
    }
  }
};

// The arguments of a kernel in addition to a tensor.
struct KernelArguments {
  const void* coefficients;
  cpu::Pass pass;
};

// Calls visit(i, begin, end) on torch's threads for ranges that together cover all tensors, of their concatenation in
// which tensor i has [starts[i], starts[i + 1]). A range is relative to its tensor, and its end may be in the padding.
template <class Visit>
void for_each_share(const std::vector<std::int64_t>& starts, const Visit& visit) {
  const std::int64_t total = starts.back();
  const std::int64_t blocks = (total + kBlockElements - 1) / kBlockElements;
  parallel_for(0, blocks, kGrainBlocks, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * kBlockElements;
    const std::int64_t end = std::min(last * kBlockElements, total);
    // The last tensor that starts at or before `begin`.
    auto i = std::upper_bound(starts.begin(), starts.end() - 1, begin) - starts.begin() - 1;
    for (; i + 1 < static_cast<std::int64_t>(starts.size()) && starts[i] < end; ++i) {
      const std::int64_t from = std::max(starts[i], begin);
      const std::int64_t to = std::min(starts[i + 1], end);
      if (from < to) {
        visit(i, from - starts[i], to - starts[i]);
      }
    }
  });
}

// `arguments_of(i)` gives tensor i's KernelArguments.
template <class ArgumentsOf>
void run_kernels(const CheckedList<cpu::OptimizerKernel>& list, const ArgumentsOf& arguments_of) {
  const auto visit = [&](std::int64_t i, std::int64_t from, std::int64_t to) {
    const auto& item = list.items[i];
    const KernelArguments arguments = arguments_of(i);
    item.kernel(item.tensors, from, to < item.numel ? to : item.numel, arguments.coefficients, arguments.pass);
  };
  for_each_share(list.starts, visit);
}

// Calls visit(piece, begin, end) for the pieces of a tensor that begin in [from, to).
template <class Visit>
void for_each_norm_piece(std::int64_t numel, std::int64_t from, std::int64_t to, const Visit& visit) {
  std::int64_t piece = (from + kPieceElements - 1) / kPieceElements;
  for (std::int64_t begin = piece * kPieceElements; begin < to && begin < numel; begin += kPieceElements) {
    visit(piece++, begin, begin + kPieceElements < numel ? begin + kPieceElements : numel);
  }
}

// The same in two passes; `factor(param, direction)` computes the second pass's factor from a tensor's sums. A tensor
// of one piece gets both passes at once. Results do not depend on the threads: pieces are fixed, and added in order.
template <class ArgumentsOf, class Factor>
void run_kernels(const CheckedList<cpu::TwoPassKernels>& list, const ArgumentsOf& arguments_of, const Factor& factor) {
  struct LongTensor {
    std::int64_t item;
    std::int64_t first_sum;
    float factor;
  };
  std::vector<LongTensor> long_tensors;
  std::vector<std::int64_t> long_starts = {0};
  std::vector<std::int64_t> first_sums(list.items.size());
  std::int64_t sum_count = 0;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const std::int64_t numel = list.items[i].numel;
    if (numel > kPieceElements) {
      first_sums[i] = sum_count;
      long_tensors.push_back({static_cast<std::int64_t>(i), sum_count, 0.0f});
      long_starts.push_back(long_starts.back() + list.starts[i + 1] - list.starts[i]);
      sum_count += (numel + kPieceElements - 1) / kPieceElements;
    }
  }
  std::vector<cpu::SquareSums> sums(sum_count);
  const auto measure = [&](std::int64_t i, std::int64_t from, std::int64_t to) {
    const auto& item = list.items[i];
    const KernelArguments arguments = arguments_of(i);
    for_each_norm_piece(item.numel, from, to, [&](std::int64_t piece, std::int64_t begin, std::int64_t end) {
      const cpu::SquareSums sum = item.kernel.measure(item.tensors, begin, end, arguments.coefficients, arguments.pass);
      if (item.numel > kPieceElements) {
        sums[first_sums[i] + piece] = sum;
      } else {
        item.kernel.apply(item.tensors, begin, end, arguments.coefficients, factor(sum.param, sum.direction));
      }
    });
  };
  for_each_share(list.starts, measure);
  for (std::size_t k = 0; k < long_tensors.size(); ++k) {
    const std::int64_t end = k + 1 < long_tensors.size() ? long_tensors[k + 1].first_sum : sum_count;
    cpu::SquareSums total{};
    for (std::int64_t at = long_tensors[k].first_sum; at < end; ++at) {
      total.param += sums[at].param;
      total.direction += sums[at].direction;
    }
    long_tensors[k].factor = factor(total.param, total.direction);
  }
  for_each_share(long_starts, [&](std::int64_t k, std::int64_t from, std::int64_t to) {
    const LongTensor& tensor = long_tensors[k];
    const auto& item = list.items[tensor.item];
    const void* const coefficients = arguments_of(tensor.item).coefficients;
    for_each_norm_piece(item.numel, from, to, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      item.kernel.apply(item.tensors, begin, end, coefficients, tensor.factor);
    });
  });
}

}  // namespace accel
