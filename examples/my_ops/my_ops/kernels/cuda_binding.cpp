// The op for CUDA tensors. Plain C++: only the kernel's file is compiled by nvcc.

#include <torch/csrc/stable/accelerator.h>

#include "binding.h"

// torch declares it for those who define USE_CUDA; the symbol is there with every CUDA build of torch.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

namespace {

using my_ops_kernels::Tensor;

void add_rms_norm(Tensor out, Tensor residual, Tensor x, Tensor weight, double eps) {
  my_ops_kernels::dispatch(out, residual, x, weight, eps, [&](const auto& norm, std::int64_t rows) {
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    if (const char* error = my_ops_kernels::add_rms_norm_cuda(norm, rows, stream)) {
      throw std::runtime_error(std::string("add_rms_norm could not be started: ") + error);
    }
  });
}

void implement(accel::Library& library) { library.impl("add_rms_norm", TORCH_BOX(&add_rms_norm)); }

}  // namespace

ACCEL_OP_LIBRARY({nullptr, my_ops_kernels::define}, {"CUDA", implement}, {"Meta", my_ops_kernels::implement_meta})
