"""Programs for test_ziglang.py: ``load`` compiles ops, ``use FILE`` uses those of an installed wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from op_builder import Binding, cpp_extension, load_inline
from op_builder.cpu import AsyncIOBuilder, PinMemoryBuilder
from op_builder.errors import IncompatibleOpError, LoadError
from op_builder.ops import CPUAdam

INDIRECT = """
#include "indirect.h"
static at::Tensor viewed(at::Tensor x) { return x.view({7, 9}); }
TORCH_LIBRARY(zig_indirect, m) { m.def("viewed(Tensor x) -> Tensor", &viewed); }
"""
THREADS = """
HEADER
#include <omp.h>

#include <stdexcept>

static int64_t NAME(int64_t count) {
  if (count < 0) throw std::invalid_argument("count is negative");
  int64_t found = 0;
#pragma omp parallel num_threads(count) reduction(+ : found)
  found += omp_get_num_threads();
  return found;
}
static void define(accel::Library& m) { m.def("NAME(int count) -> int"); }
static void all(accel::Library& m) { m.impl("NAME", BOX(&NAME)); }
"""
OURS = 'ACCEL_OP_LIBRARY({nullptr, define}, {"CompositeExplicitAutograd", all})'
TORCHS = """
STABLE_TORCH_LIBRARY(zig_by_torch, m) { m.def("by_torch(int count) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(zig_by_torch, CompositeExplicitAutograd, m) { m.impl("by_torch", TORCH_BOX(&by_torch)); }
"""
STABLE = '#include "bindings/stable_library.h"'
OPS = (
    ("boxed", '#include "torch_c/boxed.h"', "ACCEL_BOX", OURS),
    ("torch_boxed", STABLE, "TORCH_BOX", OURS),
    ("by_torch", STABLE, "TORCH_BOX", TORCHS),
)


def load() -> None:
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    CPUAdam([param], lr=0.5).step()
    print(param.tolist())
    print(PinMemoryBuilder().load().pin_memory(torch.ones(2)).tolist())
    try:
        load_inline("twice", "torch::Tensor twice(torch::Tensor x) { return x * 2; }", functions="twice")
    except IncompatibleOpError as error:
        print("refused:", error)
    Path("indirect.h").write_text("#include <torch/library.h>\n")
    Path("indirect.cpp").write_text(INDIRECT)
    try:
        cpp_extension.load("indirect", ["indirect.cpp"], is_python_module=False)
    except LoadError as error:
        print("refused:", error)
    for name, header, box, library in OPS:
        text = THREADS.replace("HEADER", header).replace("NAME", name).replace("BOX", box) + library
        op = load_inline(name, text, binding=Binding.STABLE, extra_cflags=["-fopenmp"], extra_ldflags=["-lgomp"])
        function = getattr(torch.ops.zig_by_torch if name == "by_torch" else op, name)
        print(name, "with threads:", function(3))
        for _ in range(2):
            try:
                function(-1)
            except (ValueError, RuntimeError) as error:
                print(type(error).__name__, "of", name, error)


def use(file: str) -> None:
    AsyncIOBuilder().load().aio_handle().sync_pwrite(torch.arange(99.0), file)
    print(torch.from_file(file, size=99).sum().item())
    mine, theirs = (torch.linspace(-1, 1, 1001, requires_grad=True) for _ in range(2))
    for made in (CPUAdam([mine], lr=0.1), torch.optim.AdamW([theirs], lr=0.1, weight_decay=0)):
        for _ in range(3):
            made.zero_grad()
            made.param_groups[0]["params"][0].square().sum().backward()
            made.step()
    torch.testing.assert_close(mine, theirs)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
