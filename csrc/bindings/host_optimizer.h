// The ops of an optimizer on host tensors, made from its declaration in kernels/formulas/: schemas, checks, threads.
//
// All tensors of a call are checked before the first is written, so a refused call changes nothing.
//
// There are two equivalent forms: `update` takes all tensors with every call, as torch's tracing needs.
// `prepare` keeps them: passing a tensor through torch's dispatcher costs half a microsecond, more than
// updating a small one. A prepared list keeps the tensors, not their addresses; each call checks them again.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/host_tensors.h"
#include "bindings/optimizer_passes.h"
#include "bindings/prepared_lists.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "torch_c/op_table.h"

namespace accel {

// The squares of gradients are added up in pieces of this length, whatever the number of threads.
constexpr std::int64_t kNormElements = 1 << 16;

// The sum of the squares of all elements of gradients; the same for any number of threads.
inline double sum_of_squares(const Tensors& grads, cpu::Isa isa) {
  struct Piece {
    const char* data;
    std::int64_t count;
    cpu::SumOfSquares sum;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const FloatMemory tensor = float_memory(grads[i], {"grad", i}, require_host);
    const cpu::SumOfSquares sum = cpu::find_sum_of_squares(isa, tensor.dtype);
    for (std::int64_t at = 0; at < tensor.numel; at += kNormElements) {
      const std::int64_t count = tensor.numel - at < kNormElements ? tensor.numel - at : kNormElements;
      pieces.push_back({tensor.data + at * size_bytes(tensor.dtype), count, sum});
    }
  }
  std::vector<double> sums(pieces.size());
  parallel_for(0, static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      sums[i] = pieces[i].sum(pieces[i].data, pieces[i].count);
    }
  });
  double total = 0.0;
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

// What an update does in addition to the formula, as the ops take it.
struct PassArguments {
  double grad_scale;
  bool zero_grads;
  bool stochastic;
  std::int64_t seed;
  cpu::Isa isa;
};

template <class Optimizer>
class HostOptimizer {
 public:
  using Coefficients = typename Optimizer::Coefficients;
  using Kernel = cpu::KernelsOf<Optimizer>;
  static constexpr std::size_t kStates = Optimizer::kStates.size();

  static Ops ops() {
    Ops all = Lists::ops();
    all.insert(
        all.end(),
        {{"update(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] states, Tensor(d!)[] copies, "
          "int step, float[] options, float grad_scale, bool zero_grads, bool stochastic, int seed, str isa, "
          "int[] places=[]) -> ()",
          ACCEL_BOX_TRACED(&update)},
         {"update.numbers(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] states, Tensor(d!)[] copies, "
          "Tensor numbers, bool zero_grads, bool stochastic, int seed, str isa, int[] places=[]) -> ()",
          ACCEL_BOX_TRACED(&update_by_numbers)},
         {"prepare(Tensor[] params, Tensor[] grads, Tensor[] states, Tensor[] copies, Tensor[] steps, "
          "int[] places=[]) -> int",
          ACCEL_BOX_TRACED(&prepare)},
         {"update_prepared(int list, float[] options, float grad_scale, bool zero_grads, bool stochastic, int seed, "
          "str isa, bool check_only) -> ()",
          ACCEL_BOX(&update_prepared)},
         {"grad_sum_of_squares(int list, str isa) -> float", ACCEL_BOX(&grad_sum_of_squares)},
         {"supported_isas() -> str", ACCEL_BOX(&supported_isas)},
         {"declaration() -> str", ACCEL_BOX(&declaration_of<Optimizer>)}});
    return all;
  }

  // The kernels of the update.
  static Kernel find(cpu::Isa isa, const cpu::StoredTypes& types) {
    const Kernel kernel = cpu::find_update<Optimizer>(isa, types);
    bool is_missing = false;
    if constexpr (Optimizer::kIsTwoPass) {
      is_missing = kernel.measure == nullptr;
    } else {
      is_missing = kernel == nullptr;
    }
    if (is_missing) {
      refuse(std::string(Optimizer::kName) + " does not support states in bytes or with stochastic rounding.",
             "Pass states of float32 or of the parameter's type, and stochastic=False.");
    }
    return kernel;
  }

  // Checks all tensors and chooses the kernels, by `find_kernel(isa, types)`.
  template <class Find>
  static CheckedList<Kernel> check(const TensorLists& lists, const PassArguments& arguments, const Find& find_kernel) {
    lists.require_length(lists.grads, 1, "grad");
    lists.require_length(lists.states, kStates, "state");
    if (!lists.copies.empty()) {
      lists.require_length(lists.copies, 1, "copy");
    }
    lists.require_places();
    CheckedList<Kernel> checked;
    checked.items.resize(lists.params.size());
    check_each(checked.items.size(), [&](std::size_t i) {
      const UpdateItem item = checked_item(lists, i, Optimizer::kStates, arguments.stochastic, require_host);
      checked.items[i] = {item, find_kernel(arguments.isa, item.types)};
    });
    require_disjoint(checked.items, Optimizer::kStates, arguments.zero_grads);
    checked.make_starts();
    return checked;
  }

  // Checks the gradients of a list whose other tensors have not changed.
  static void check_grads(const TensorLists& lists, const PassArguments& arguments, CheckedList<Kernel>& checked) {
    lists.require_length(lists.grads, 1, "grad");
    check_each(checked.items.size(), [&](std::size_t i) {
      auto& item = checked.items[i];
      take_grad(lists, i, item, require_host);
      require_apart(item, i, Optimizer::kStates);
      item.kernel = find(arguments.isa, item.types);
    });
    if (arguments.zero_grads) {
      require_disjoint(checked.items, Optimizer::kStates, true);
    }
  }

  // The update itself, cut into even shares for torch's threads. `steps` count from 1: one for each
  // parameter, or one for all.
  static void run(const CheckedList<Kernel>& checked, const std::vector<double>& options,
                  const std::vector<double>& steps, const PassArguments& arguments) {
    require_options(options);
    const auto named = Optimizer::options(options.data());
    // Tensors differ in their step only when some had no gradient at times.
    const std::size_t count = checked.items.size();
    std::vector<Coefficients> coefficients;
    std::vector<std::uint32_t> which(count);
    double last_step = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      const double step = steps.size() == 1 ? steps[0] : steps[i];
      if (step != last_step) {
        coefficients.push_back(Optimizer::coefficients(named, step));
        last_step = step;
      }
      which[i] = static_cast<std::uint32_t>(coefficients.size() - 1);
    }
    const auto arguments_of = [&](std::int64_t i) {
      const double step = steps.size() == 1 ? steps[0] : steps[i];
      const cpu::Pass pass{static_cast<float>(arguments.grad_scale), arguments.zero_grads,
                           cpu::random_key(arguments.seed, static_cast<std::uint64_t>(step), checked.items[i].place)};
      return KernelArguments{&coefficients[which[i]], pass};
    };
    if constexpr (Optimizer::kIsTwoPass) {
      run_kernels(checked, arguments_of, Optimizer::factor);
    } else {
      run_kernels(checked, arguments_of);
    }
  }

  static void require_options(const std::vector<double>& options) {
    if (options.size() != Optimizer::kOptions.size()) {
      refuse(std::to_string(options.size()) + " options were given.",
             "Pass " + std::to_string(Optimizer::kOptions.size()) + " numbers.");
    }
  }

 private:
  struct Prepared : PreparedList {
    // The results of the last check, and its settings.
    CheckedList<Kernel> checked;
    std::vector<float*> counters;
    cpu::Isa isa = cpu::Isa::baseline;
    bool stochastic = false;
    bool zero_grads = false;

    void check_again(const PassArguments& arguments) {
      const bool has_other_settings =
          arguments.isa != isa || arguments.stochastic != stochastic || (arguments.zero_grads && !zero_grads);
      check(
          has_other_settings,
          [&] {
            checked = HostOptimizer::check(lists, arguments, find);
            counters = step_counters(steps, require_host);
            isa = arguments.isa;
            stochastic = arguments.stochastic;
            zero_grads = arguments.zero_grads;
          },
          [&] {
            check_grads(lists, arguments, checked);
            zero_grads = arguments.zero_grads;
          });
    }
  };

  using Lists = PreparedLists<Prepared>;

  static void update(Tensors params, Tensors grads, Tensors states, Tensors copies, std::int64_t step,
                     std::vector<double> options, double grad_scale, bool zero_grads, bool stochastic,
                     std::int64_t seed, std::string isa, std::vector<std::int64_t> places) {
    if (step < 1) {
      refuse("step is " + std::to_string(step) + "; steps count from 1.", "Pass the number of this update.");
    }
    const TensorLists lists{std::move(params), std::move(grads), std::move(states), std::move(copies),
                            std::move(places)};
    const PassArguments arguments{grad_scale, zero_grads, stochastic, seed, checked_isa(isa)};
    run(check(lists, arguments, find), options, {static_cast<double>(step)}, arguments);
  }

  // The same for a traced graph, which would be compiled again for each new step or learning rate: step, grad_scale and
  // options come in a tensor of float64.
  static void update_by_numbers(Tensors params, Tensors grads, Tensors states, Tensors copies, Tensor numbers,
                                bool zero_grads, bool stochastic, std::int64_t seed, std::string isa,
                                std::vector<std::int64_t> places) {
    constexpr std::size_t kBefore = 2;
    constexpr std::size_t kCount = kBefore + Optimizer::kOptions.size();
    if (numbers.scalar_type() != ScalarType::Double || numbers.numel() != static_cast<std::int64_t>(kCount)) {
      refuse("numbers is not a tensor of " + std::to_string(kCount) + " float64.",
             "Pass step, grad_scale and the options, in this order.");
    }
    const DenseMemory memory = host_memory(numbers, {"numbers", Argument::kNoList}, sizeof(double));
    const auto* const values = reinterpret_cast<const double*>(memory.data);
    const double step = values[0];
    constexpr double kLastStep = 9007199254740992.0;  // 2^53: a double holds every whole number up to here
    if (!(std::fabs(step) <= kLastStep && std::floor(step) == step)) {
      refuse("step is " + std::to_string(step) + ", which is not a whole number.", "Pass the number of this update.");
    }
    update(std::move(params), std::move(grads), std::move(states), std::move(copies), static_cast<std::int64_t>(step),
           {values + kBefore, values + kCount}, values[1], zero_grads, stochastic, seed, std::move(isa),
           std::move(places));
  }

  static std::int64_t prepare(Tensors params, Tensors grads, Tensors states, Tensors copies, Tensors steps,
                              std::vector<std::int64_t> places) {
    auto prepared = std::make_shared<Prepared>();
    prepared->lists = {std::move(params), std::move(grads), std::move(states), std::move(copies), std::move(places)};
    prepared->lists.require_places();
    prepared->lists.require_length(steps, 1, "step");
    prepared->steps = std::move(steps);
    return Lists::add(std::move(prepared));
  }

  // `check_only` refuses what the update would: an update of several lists checks all before it writes to the first.
  static void update_prepared(std::int64_t list, std::vector<double> options, double grad_scale, bool zero_grads,
                              bool stochastic, std::int64_t seed, std::string isa, bool check_only) {
    const auto prepared = Lists::find(list);
    const Lock lock(prepared->mutex);
    const PassArguments arguments{grad_scale, zero_grads, stochastic, seed, checked_isa(isa)};
    require_options(options);
    prepared->check_again(arguments);
    const std::vector<double> steps = next_steps(prepared->counters);
    if (!check_only) {
      run(prepared->checked, options, steps, arguments);
      write_steps(prepared->counters, steps);
    }
  }

  static double grad_sum_of_squares(std::int64_t list, std::string isa) {
    const auto prepared = Lists::find(list);
    const Lock lock(prepared->mutex);
    return sum_of_squares(prepared->lists.grads, checked_isa(isa));
  }
};

}  // namespace accel

// At namespace scope of a binding: all ops of one optimizer.
#define ACCEL_HOST_OPTIMIZER(Optimizer) ACCEL_OP_TABLE(::accel::HostOptimizer<Optimizer>::ops(), "CPU")
