// The cpu_adam op library: the ops of every optimizer on the host, and the one that undoes an update.

#include "bindings/host_optimizer.h"
#include "kernels/cpu/adam.h"

namespace {

using AdamOps = accel::HostOptimizer<accel::Adam>;

accel::cpu::OptimizerKernel find_rollback(accel::cpu::Isa isa, const accel::cpu::StoredTypes& types) {
  const bool is_float =
      types.param == accel::DType::float32 && types.grad == accel::DType::float32 &&
      (types.state == accel::cpu::StateStorage::float32 || types.state == accel::cpu::StateStorage::as_param);
  if (!is_float) {
    accel::refuse("A tensor is not of float32; an update can only be undone in float32.",
                  "Keep a copy of the tensors instead.");
  }
  return accel::cpu::find_adam_rollback(isa);
}

void rollback(accel::Tensors params, accel::Tensors grads, accel::Tensors states, std::int64_t step,
              std::vector<double> options, std::string isa) {
  if (step < 1) {
    accel::refuse("step is " + std::to_string(step) + "; steps count from 1.", "Pass the number of this update.");
  }
  AdamOps::require_options(options);
  const accel::AdamOptions given = accel::Adam::options(options.data());
  const accel::AdamCoefficients c = accel::adam_coefficients(given, static_cast<double>(step));
  if (c.beta1 == 0.0f || c.beta2 == 0.0f) {
    accel::refuse("An update with a beta of 0 cannot be undone: it keeps nothing of the old moment.",
                  "Keep a copy of the tensors instead.");
  }
  if (c.decay == 0.0f || given.lr * given.weight_decay == 1.0) {
    accel::refuse("An update with lr * weight_decay = 1 cannot be undone: it keeps nothing of the old parameter.",
                  "Keep a copy of the tensors instead.");
  }
  const accel::TensorLists lists{std::move(params), std::move(grads), std::move(states), {}};
  const accel::PassArguments arguments{1.0, false, false, 0, accel::checked_isa(isa)};
  AdamOps::run(AdamOps::check(lists, arguments, find_rollback), options, {static_cast<double>(step)}, arguments);
}

accel::Ops ops() {
  accel::Ops all = AdamOps::ops();
  all.push_back(
      {"rollback(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] states, int step, float[] options, "
       "str isa) -> ()",
       ACCEL_BOX_TRACED(&rollback)});
  return all;
}

}  // namespace

ACCEL_OP_TABLE(ops(), "CPU")
