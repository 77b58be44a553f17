// The op for CPU tensors.

#include <algorithm>

#include <torch/csrc/stable/ops.h>

#include "binding.h"

namespace {

using my_ops_kernels::Tensor;

constexpr std::int64_t kElementsPerTask = 32768;  // fewer are done sooner than another thread is woken

void add_rms_norm(Tensor out, Tensor residual, Tensor x, Tensor weight, double eps) {
  my_ops_kernels::dispatch(out, residual, x, weight, eps, [](const auto& norm, std::int64_t rows) {
    // torch's own threads: torch.set_num_threads() holds here, too.
    const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / norm.columns);
    torch::stable::parallel_for(0, rows, rows_per_task, [&](std::int64_t first, std::int64_t last) {
      my_ops_kernels::add_rms_norm_cpu(norm, first, last);
    });
  });
}

void implement(accel::Library& library) { library.impl("add_rms_norm", TORCH_BOX(&add_rms_norm)); }

}  // namespace

ACCEL_OP_LIBRARY({nullptr, my_ops_kernels::define}, {"CPU", implement}, {"Meta", my_ops_kernels::implement_meta})
