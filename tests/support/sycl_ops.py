"""A small real SYCL op for the builder's tests: written into a directory, compiled and run for real."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from op_builder.builder.sycl import SYCLOpBuilder
from op_builder.cache.store import Cache
from op_builder.toolchains.sycl_runtime import find_runtime
from tests.support.foreign_package import python
from tests.support.small_ops import SmallBuilder

needs_runtime = pytest.mark.skipif(
    find_runtime() is None or shutil.which("g++") is None, reason="needs the SYCL runtime (the extra sycl) and g++"
)

KERNEL = """
#pragma once
#include <cstdint>
#include <sycl/ext/oneapi/free_function_kernel_properties.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/half_type.hpp>
#include "factor.h"

namespace tests {

template <class T>
SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<1>))
void scale(T* x, float a, std::int64_t n) {
  const std::int64_t i = sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_global_linear_id();
  if (i < n) x[i] = static_cast<T>(x[i] * a * FACTOR);
}

}  // namespace tests
"""

BINDING = """
#include "bindings/stable_library.h"
#include "host/launch.h"
#include "host/tensor_stream.h"

namespace {

using torch::stable::Tensor;

const accel::xpu::Kernel kScale[] = {
    ACCEL_SYCL_KERNEL(tests::scale<float>),
    ACCEL_SYCL_KERNEL_NEEDING(accel::xpu::kFp64, tests::scale<double>),
    ACCEL_SYCL_KERNEL_NEEDING(accel::xpu::kFp16, tests::scale<::sycl::half>),
};

void scale_(Tensor x, double a) {
  auto stream = accel::xpu::stream_for(x);
  using Type = torch::headeronly::ScalarType;
  const int which = x.scalar_type() == Type::Double ? 1 : x.scalar_type() == Type::Half ? 2 : 0;
  const std::int64_t n = x.numel();
  const accel::xpu::Range range{static_cast<std::size_t>((n + 63) / 64), 64};
  accel::xpu::launch(stream, kScale[which], range, x.data_ptr(), static_cast<float>(a), n);
  stream.finish();
}

// With one argument too few.
void forget_(Tensor x, double a) {
  auto stream = accel::xpu::stream_for(x);
  accel::xpu::launch(stream, kScale[0], {1, 64}, x.data_ptr(), static_cast<float>(a));
}

void define(accel::Library& m) {
  m.def("scale_(Tensor(a!) x, float a) -> ()").def("forget_(Tensor(a!) x, float a) -> ()");
}
void implement(accel::Library& m) { m.impl("scale_", TORCH_BOX(&scale_)).impl("forget_", TORCH_BOX(&forget_)); }

}  // namespace

ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", implement}, {"XPU", implement})
"""


# A kernel on torch's stream of an XPU device, by stand-ins for the two functions of torch that return it, behind work
# that waits until the call has returned.
XPU_BINDING = """
#include <chrono>
#include <future>
#include <sycl/sycl.hpp>
#include "bindings/stable_library.h"
#include "host/launch.h"
#include "host/tensor_stream.h"

namespace {

using torch::stable::Tensor;

const accel::xpu::Kernel kScale = ACCEL_SYCL_KERNEL(tests::scale<float>);

sycl::queue& current_queue() {
  static auto* const queue = new sycl::queue(sycl::cpu_selector_v, sycl::property::queue::in_order());
  return *queue;
}

}  // namespace

extern "C" AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, int32_t* type) {
  *type = aoti_torch_device_type_xpu();
  return AOTI_TORCH_SUCCESS;
}
extern "C" AOTITorchError aoti_torch_get_current_xpu_stream(int32_t, void** stream) {
  *stream = &current_queue();
  return AOTI_TORCH_SUCCESS;
}

namespace {

// x becomes (x + 1) * a + 3. False: the launch came back only when what was before it had ended.
bool between(const Tensor& x, double a) {
  sycl::queue& queue = current_queue();
  float* const data = static_cast<float*>(x.mutable_data_ptr());
  const std::int64_t n = x.numel();
  const auto add = [=](float term) {
    for (std::int64_t i = 0; i < n; ++i) data[i] += term;
  };
  std::promise<void> returned;
  bool had_returned = false;
  queue.submit([&](sycl::handler& handler) {
    handler.host_task([&] {
      had_returned = returned.get_future().wait_for(std::chrono::seconds(300)) == std::future_status::ready;
      add(1.0f);
    });
  });
  accel::xpu::Stream stream = accel::xpu::stream_for(x);
  accel::xpu::launch(stream, kScale, {static_cast<std::size_t>((n + 63) / 64), 64}, data, static_cast<float>(a), n);
  stream.finish();
  returned.set_value();
  queue.submit([&](sycl::handler& handler) { handler.host_task([&] { add(3.0f); }); });
  queue.wait_and_throw();
  return had_returned;
}

void define(accel::Library& m) { m.def("between(Tensor(a!) x, float a) -> bool"); }
void implement(accel::Library& m) { m.impl("between", TORCH_BOX(&between)); }

}  // namespace

ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", implement})
"""


class ScaleBuilder(SYCLOpBuilder, SmallBuilder):
    """``scale_(x, a)``: x *= a * FACTOR, a kernel of one header, for float32, float64 and float16."""

    NAME = "sycl_scale"

    def __init__(self, directory: Path, cache: Cache) -> None:
        super().__init__(directory, cache)
        self.files, self.flags = ["binding.cpp"], []

    def kernel_sources(self) -> list[str]:
        return [str(self.directory / "scale.sycl.hpp")]

    def include_paths(self) -> list[str]:
        return [str(self.directory / "include")]


def write_scale(directory: Path, *, kernel: str = KERNEL, binding: str = BINDING, factor: str = "1.0f") -> None:
    """Write the op's files, anew where they are there already."""
    (directory / "include").mkdir(parents=True, exist_ok=True)
    (directory / "binding.cpp").write_text(binding)
    (directory / "scale.sycl.hpp").write_text(kernel)
    (directory / "include" / "factor.h").write_text(f"#define FACTOR {factor}\n")


def run_with_op(directory: Path, code: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new process in which ``op`` is the built op, ``torch`` is imported."""
    start = f"""
        import os, threading
        from pathlib import Path
        import torch
        from op_builder.cache.store import Cache
        from tests.support.sycl_ops import ScaleBuilder
        directory = Path({str(directory)!r})
        builder = ScaleBuilder(directory / "op", Cache(directory / "cache"))
        op = builder.load()
    """
    return python("-c", textwrap.dedent(start) + textwrap.dedent(code), ACCEL_JIT="0", **variables)
