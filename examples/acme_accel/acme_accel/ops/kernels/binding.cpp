// Schema, checks, dispatch. It uses torch's stable C ABI alone (torch/csrc/stable/), so one binary serves every
// torch >= 2.10 and every Python. "CPU" is the dispatch key of this demonstration; a card's own is "PrivateUse1".

#include <stdexcept>

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "bindings/stable_library.h"  // of accel-ops
#include "silu_and_mul.h"

namespace {

using torch::stable::Tensor;

constexpr std::int64_t kElementsPerTask = 32768;  // fewer are done sooner than another thread is woken

// Python sees a ValueError.
void require(const Tensor& gate, const Tensor& tensor) {
  bool fits = tensor.scalar_type() == torch::headeronly::ScalarType::Float && tensor.is_contiguous() &&
              tensor.is_cpu() && tensor.dim() == gate.dim();
  for (std::int64_t i = 0; fits && i < gate.dim(); ++i) {
    fits = tensor.size(i) == gate.size(i);
  }
  if (!fits) {
    throw std::invalid_argument("silu_and_mul: out, gate and up must be contiguous, of float32 and of one shape.");
  }
}

void silu_and_mul(Tensor out, Tensor gate, Tensor up) {
  require(gate, gate);
  require(gate, up);
  require(gate, out);
  float* const to = static_cast<float*>(out.mutable_data_ptr());
  const float* const gates = static_cast<const float*>(gate.data_ptr());
  const float* const ups = static_cast<const float*>(up.data_ptr());
  torch::stable::parallel_for(0, gate.numel(), kElementsPerTask, [&](std::int64_t first, std::int64_t last) {
    acme::silu_and_mul(to, gates, ups, first, last);
  });
}

// For tracing: nothing is returned and there is no memory to write.
void silu_and_mul_meta(Tensor, Tensor, Tensor) {}

void define(accel::Library& library) { library.def("silu_and_mul(Tensor(a!) out, Tensor gate, Tensor up) -> ()"); }
void implement(accel::Library& library) { library.impl("silu_and_mul", TORCH_BOX(&silu_and_mul)); }
void implement_meta(accel::Library& library) { library.impl("silu_and_mul", TORCH_BOX(&silu_and_mul_meta)); }

}  // namespace

ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", implement}, {"Meta", implement_meta})
