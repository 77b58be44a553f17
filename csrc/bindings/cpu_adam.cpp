// The cpu_adam op library: schemas, checks and dispatch to kernels/cpu/adam.h.
//
// All tensors of a call are checked before the first is written, so a refused call changes nothing.

#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "bindings/stable_library.h"
#include "bindings/tensor_checks.h"
#include "common/partition.h"
#include "kernels/cpu/adam.h"

namespace {

using accel::Argument;
using accel::HostTensor;
using accel::refuse;
using accel::cpu::AdamKernel;
using accel::cpu::AdamOptions;
using accel::cpu::Isa;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

// Threads take whole blocks, so that their borders fall on cache lines; a thread is worth waking for
// some ten thousand elements.
constexpr std::int64_t kBlockElements = 1024;
constexpr std::int64_t kGrainBlocks = 16;

struct Job {
  accel::cpu::AdamTensors tensors;
  AdamKernel kernel;
};

enum class Direction { forward, back };

Isa checked_isa(const std::string& name) {
  Isa isa;
  if (accel::cpu::parse_isa(name.c_str(), &isa) && accel::cpu::isa_supported(isa)) {
    return isa;
  }
  std::string allowed;
  for (const Isa candidate : accel::cpu::kAllIsas) {
    if (accel::cpu::isa_supported(candidate)) {
      allowed += std::string(allowed.empty() ? "" : ", ") + accel::cpu::isa_name(candidate);
    }
  }
  refuse("Instruction set '" + name + "' is not supported here.", "Choose one of: " + allowed + ".");
}

void check_lengths(const Tensors& params, const Tensors& others, const char* role) {
  if (others.size() != params.size()) {
    refuse(std::to_string(params.size()) + " parameters came with " + std::to_string(others.size()) + " " + role +
               " tensors.",
           "Pass lists of equal length.");
  }
}

// The job for one parameter, all checks done.
Job make_job(const Tensor& param, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
             std::size_t index, Isa isa, Direction direction) {
  const char* const roles[] = {"param", "grad", "exp_avg", "exp_avg_sq"};
  const Tensor* const tensors[] = {&param, &grad, &exp_avg, &exp_avg_sq};
  const auto name = [&](int i) { return Argument{roles[i], index}.text(); };
  HostTensor host[4];
  for (int i = 0; i < 4; ++i) {
    host[i] = accel::host_tensor(*tensors[i], {roles[i], index});
    if (host[i].numel != host[0].numel) {
      refuse(name(i) + " has " + std::to_string(host[i].numel) + " elements, its parameter has " +
                 std::to_string(host[0].numel) + ".",
             "Pass tensors of equal length.");
    }
    if (direction == Direction::back && host[i].dtype != accel::DType::float32) {
      refuse(name(i) + " is of type " + dtype_name(host[i].dtype) + "; an update can only be undone in float32.",
             "Keep a copy of the tensors instead.");
    }
    for (int j = 0; j < i; ++j) {
      if (overlap(host[i], host[j])) {
        refuse(name(i) + " shares memory with its " + roles[j] + ".", "Pass tensors with memory of their own.");
      }
    }
  }
  for (int i = 2; i < 4; ++i) {
    if (host[i].dtype != accel::DType::float32 && host[i].dtype != host[0].dtype) {
      refuse(name(i) + " is of type " + dtype_name(host[i].dtype) + ", its parameter of type " +
                 dtype_name(host[0].dtype) + "; a moment is of float32 or of its parameter's type.",
             "Convert it, for example x.float().");
    }
  }
  if (host[2].dtype != host[3].dtype) {
    refuse(name(2) + " is of type " + dtype_name(host[2].dtype) + ", exp_avg_sq of type " +
               dtype_name(host[3].dtype) + "; the two moments must be of one type.",
           "Convert one of them.");
  }
  const AdamKernel kernel = direction == Direction::forward
                                ? find_adam_update(isa, host[0].dtype, host[1].dtype, host[2].dtype)
                                : find_adam_rollback(isa);
  return {{host[0].data, host[1].data, host[2].data, host[3].data}, kernel};
}

void run(Direction direction, const Tensors& params, const Tensors& grads, const Tensors& exp_avgs,
         const Tensors& exp_avg_sqs, const AdamOptions& options, const std::string& isa_name) {
  if (options.step < 1) {
    refuse("step is " + std::to_string(options.step) + "; steps count from 1.", "Pass the number of this update.");
  }
  const Isa isa = checked_isa(isa_name);
  check_lengths(params, grads, "grad");
  check_lengths(params, exp_avgs, "exp_avg");
  check_lengths(params, exp_avg_sqs, "exp_avg_sq");
  const auto coefficients = adam_coefficients(options);
  if (direction == Direction::back) {
    if (coefficients.beta1 == 0.0f || coefficients.beta2 == 0.0f) {
      refuse("An update with a beta of 0 cannot be undone: it keeps nothing of the old moment.",
             "Keep a copy of the tensors instead.");
    }
    if (coefficients.decay == 0.0f || options.lr * options.weight_decay == 1.0) {
      refuse("An update with lr * weight_decay = 1 cannot be undone: it keeps nothing of the old parameter.",
             "Keep a copy of the tensors instead.");
    }
  }

  std::vector<Job> jobs;
  std::vector<std::int64_t> starts{0};
  jobs.reserve(params.size());
  starts.reserve(params.size() + 1);
  for (std::size_t i = 0; i < params.size(); ++i) {
    jobs.push_back(make_job(params[i], grads[i], exp_avgs[i], exp_avg_sqs[i], i, isa, direction));
    starts.push_back(starts.back() + params[i].numel());
  }

  const std::int64_t total = starts.back();
  const std::int64_t blocks = (total + kBlockElements - 1) / kBlockElements;
  torch::stable::parallel_for(0, blocks, kGrainBlocks, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t end = last * kBlockElements < total ? last * kBlockElements : total;
    accel::for_each_piece(starts.data(), static_cast<std::int64_t>(jobs.size()), first * kBlockElements, end,
                          [&](std::int64_t i, std::int64_t from, std::int64_t to) {
                            jobs[i].kernel(jobs[i].tensors, from, to, coefficients);
                          });
  });
}

template <Direction direction>
void adam(Tensors params, Tensors grads, Tensors exp_avgs, Tensors exp_avg_sqs, std::int64_t step, double lr,
          double beta1, double beta2, double eps, double weight_decay, bool adamw_mode, bool bias_correction,
          std::string isa) {
  run(direction, params, grads, exp_avgs, exp_avg_sqs,
      {step, lr, beta1, beta2, eps, weight_decay, adamw_mode, bias_correction}, isa);
}

// For tracing: the ops return nothing and fake tensors have no memory, so there is nothing to do;
// the checks run with the real tensors.
void adam_meta(Tensors, Tensors, Tensors, Tensors, std::int64_t, double, double, double, double, double, bool, bool,
               std::string) {}

// The supported instruction sets, best last, with commas between.
std::string supported_isas() {
  std::string names;
  for (const Isa isa : accel::cpu::kAllIsas) {
    if (accel::cpu::isa_supported(isa)) {
      names += std::string(names.empty() ? "" : ",") + accel::cpu::isa_name(isa);
    }
  }
  return names;
}

#define ACCEL_ADAM_ARGUMENTS                                                                       \
  "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "        \
  "int step, float lr, float beta1, float beta2, float eps, float weight_decay, bool adamw_mode, " \
  "bool bias_correction, str isa) -> ()"

void define(accel::Library& library) {
  library.def("adam_update" ACCEL_ADAM_ARGUMENTS);
  library.def("adam_rollback" ACCEL_ADAM_ARGUMENTS);
  library.def("supported_isas() -> str");
}

void implement(accel::Library& library) {
  library.impl("adam_update", TORCH_BOX(&adam<Direction::forward>));
  library.impl("adam_rollback", TORCH_BOX(&adam<Direction::back>));
}

void implement_meta(accel::Library& library) {
  library.impl("adam_update", TORCH_BOX(&adam_meta));
  library.impl("adam_rollback", TORCH_BOX(&adam_meta));
}

void implement_without_tensors(accel::Library& library) { library.impl("supported_isas", TORCH_BOX(&supported_isas)); }

}  // namespace

ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", implement}, {"Meta", implement_meta},
                 {"CompositeExplicitAutograd", implement_without_tensors})
