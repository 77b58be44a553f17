// The op for XPU tensors, and for CPU tensors on a SYCL CPU device. Plain C++: the kernel is a text of its own.

#include <algorithm>
#include <type_traits>

#include "binding.h"
#include "host/launch.h"         // of accel-ops
#include "host/tensor_stream.h"  // of accel-ops

namespace {

using my_ops_kernels::Tensor;

// How many work-groups, and of how many work-items. SYCL numbers all items of a launch by an int, so there are as many
// as keep the device busy, and rows beyond them come in their next rounds.
accel::xpu::Range range_for(const accel::xpu::Device& device, std::int64_t rows) {
  const std::int64_t busy = std::int64_t{device.compute_units} * 64;
  return {static_cast<std::size_t>(std::min(rows, busy)), std::min<std::size_t>(256, device.max_group_size)};
}

// Each by the name that C++ would call it by. They are compiled at their first launch, or ahead by icpx.
const accel::xpu::Kernel kFloat = ACCEL_SYCL_KERNEL(my_ops_kernels::add_rms_norm_kernel<float>);
const accel::xpu::Kernel kBFloat16 = ACCEL_SYCL_KERNEL(my_ops_kernels::add_rms_norm_kernel<my_ops_kernels::BFloat16>);

void add_rms_norm(Tensor out, Tensor residual, Tensor x, Tensor weight, double eps) {
  my_ops_kernels::dispatch(out, residual, x, weight, eps, [&](const auto& norm, std::int64_t rows) {
    accel::xpu::Stream stream = accel::xpu::stream_for(x);
    const bool is_float = std::is_same_v<decltype(norm.out), float*>;
    accel::xpu::launch(stream, is_float ? kFloat : kBFloat16, range_for(stream.device(), rows), norm, rows);
    stream.finish();  // of CPU tensors; on an XPU nothing waits
  });
}

void implement(accel::Library& library) { library.impl("add_rms_norm", TORCH_BOX(&add_rms_norm)); }

}  // namespace

ACCEL_OP_LIBRARY({nullptr, my_ops_kernels::define}, {"XPU", implement}, {"CPU", implement},
                 {"Meta", my_ops_kernels::implement_meta})
