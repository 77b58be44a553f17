"""A machine without compiler and binutils, on which the package ziglang compiles."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.environments import run

pytestmark = pytest.mark.slow

LOAD = '''
import torch
from accelerator import get_accelerator
from op_builder import Binding, cpp_extension, load_inline
from op_builder.errors import IncompatibleOpError, LoadError
from op_builder.ops import CPUAdam

param = torch.ones(3, requires_grad=True)
param.grad = torch.ones(3)
CPUAdam([param], lr=0.5).step()
print(param.tolist())
print(get_accelerator().create_op_builder("PinMemoryBuilder").load().pin_memory(torch.ones(2)).tolist())
try:
    load_inline("twice", "torch::Tensor twice(torch::Tensor x) { return x * 2; }", functions="twice")
except IncompatibleOpError as error:
    print("refused:", error)
open("indirect.h", "w").write("#include <torch/library.h>\\n")
open("indirect.cpp", "w").write("""
#include "indirect.h"
static at::Tensor viewed(at::Tensor x) { return x.view({7, 9}); }
TORCH_LIBRARY(zig_indirect, m) { m.def("viewed(Tensor x) -> Tensor", &viewed); }
""")
try:
    cpp_extension.load("indirect", ["indirect.cpp"], is_python_module=False)
except LoadError as error:
    print("refused:", error)

def written(name, headers, box, library):
    return f"""
{headers}
#include <omp.h>

#include <stdexcept>

static int64_t {name}(int64_t count) {{
  if (count < 0) throw std::invalid_argument("count is negative");
  int64_t found = 0;
#pragma omp parallel num_threads(count) reduction(+ : found)
  found += omp_get_num_threads();
  return found;
}}
static void define(accel::Library& m) {{ m.def("{name}(int count) -> int"); }}
static void all(accel::Library& m) {{ m.impl("{name}", {box}(&{name})); }}
{library}
"""

OURS = 'ACCEL_OP_LIBRARY({nullptr, define}, {"CompositeExplicitAutograd", all})'
TORCHS = """
STABLE_TORCH_LIBRARY(zig_by_torch, m) { m.def("by_torch(int count) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(zig_by_torch, CompositeExplicitAutograd, m) { m.impl("by_torch", TORCH_BOX(&by_torch)); }
"""
STABLE = '#include "bindings/stable_library.h"'
for name, headers, box, library in (
    ("boxed", '#include "torch_c/boxed.h"', "ACCEL_BOX", OURS),
    ("torch_boxed", STABLE, "TORCH_BOX", OURS),
    ("by_torch", STABLE, "TORCH_BOX", TORCHS),
):
    text = written(name, headers, box, library)
    op = load_inline(name, text, binding=Binding.STABLE, extra_cflags=["-fopenmp"], extra_ldflags=["-lgomp"])
    op = torch.ops.zig_by_torch if name == "by_torch" else op
    print(name, "with threads:", getattr(op, name)(3))
    for _ in range(2):
        try:
            getattr(op, name)(-1)
        except (ValueError, RuntimeError) as error:
            print(type(error).__name__, "of", name, error)
'''


def test_ops_are_compiled_and_those_on_torchs_headers_are_refused(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    variables = {
        "PATH": str(tmp_path / "bin"),
        "CXX": None,
        "PYTHONPATH": str(packages),
        "ACCEL_CACHE_DIR": str(tmp_path / "cache"),
        "ACCEL_ACCELERATOR": "cpu",
    }
    output = run(sys.executable, "-c", LOAD, cwd=tmp_path, **variables)
    assert output.count("No C++ compiler is on PATH: using") == 1
    lines = [line for line in output.splitlines() if line.startswith("[")]
    assert lines == ["[0.5, 0.5, 0.5]", "[1.0, 1.0]"]
    # An exception of libc++ would end the process in torch, which has libstdc++.
    for name, error in (("boxed", "ValueError"), ("torch_boxed", "ValueError"), ("by_torch", "RuntimeError")):
        assert f"{name} with threads: 9\n" in output
        assert output.count(f"{error} of {name} ") == 2, output
        assert "count is negative" in output
    for refused in output.split("refused:")[1:]:
        assert "it uses libc++" in refused
        assert "declare BINDING = Binding.STABLE" in refused
    assert output.count("refused:") == 2
    report = run(sys.executable, "-m", "op_builder.report", "--json", cwd=tmp_path, **variables)
    toolchains = json.JSONDecoder().raw_decode(report)[0]["environment"]["toolchains"]
    assert str(packages) in json.dumps(toolchains["c++"])
