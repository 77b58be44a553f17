"""Compile and load a short source in a new process and print the time as one JSON line.

    load_text.py CONTENDER VARIANT

CONTENDER is stable, extension or exported (this project with the Stable ABI, torch/extension.h or TVM FFI), torch or
tvm-ffi. Sources of different variants are different ops. torch and the contender are imported before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STABLE = """
#include "bindings/stable_library.h"
#include <torch/csrc/stable/tensor.h>

static void add_one_(torch::stable::Tensor x) {
  float* data = static_cast<float*>(x.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) data[i] += 1.0f;
}
static void define(accel::Library& m) { m.def("add_one_(Tensor(a!) x) -> ()"); }
static void cpu(accel::Library& m) { m.impl("add_one_", TORCH_BOX(&add_one_)); }
ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", cpu})
"""
EXTENSION = """
void add_one_(torch::Tensor x) {
  float* data = x.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] += 1.0f;
}
"""
TVM = """
void add_one_(tvm::ffi::TensorView x) {
  float* data = static_cast<float*>(x.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) data[i] += 1.0f;
}
"""


def stable_builder(variant: str) -> Any:
    """A builder of the source with the Stable ABI."""
    from op_builder import Binding, OpBuilder

    class TextBuilder(OpBuilder):
        NAME = "text"
        BINDING = Binding.STABLE

        def sources(self) -> list[str]:
            return []

        def source_texts(self) -> dict[str, str]:
            return {"text.cpp": f"{STABLE}// {variant}\n"}

        def include_paths(self) -> list[str]:
            return ["csrc"]

    return TextBuilder()


def loader(contender: str, variant: str) -> Callable[[], Any]:
    """A function that loads the op; what it needs is imported."""
    comment = f"// {variant}\n"
    if contender == "stable":
        return stable_builder(variant).load  # type: ignore[no-any-return]
    if contender == "extension":
        from op_builder import load_inline

        return lambda: load_inline("text", EXTENSION + comment, functions="add_one_")
    if contender == "exported":
        import tvm_ffi.cpp  # so that the clock does not include it

        from op_builder import Binding, load_inline

        return lambda: load_inline("text", TVM + comment, functions="add_one_", binding=Binding.TVM_FFI)
    if contender == "torch":
        from torch.utils import cpp_extension

        # torch builds each name in its own directory, which keeps one source.
        return lambda: cpp_extension.load_inline(f"text_{variant}", EXTENSION + comment, functions="add_one_")
    import tvm_ffi.cpp

    return lambda: tvm_ffi.cpp.load_inline("text", cpp_sources=TVM + comment, functions="add_one_")


def main() -> None:
    import torch

    load = loader(sys.argv[1], sys.argv[2])
    started = time.perf_counter()
    op = load()
    loaded = time.perf_counter()
    x = torch.zeros(4)
    op.add_one_(x)
    assert x.tolist() == [1.0] * 4
    print(json.dumps({"load_s": loaded - started}))


if __name__ == "__main__":
    main()
