"""A machine without compiler and binutils, on which the package ziglang compiles."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.environments import run

pytestmark = pytest.mark.slow

LOAD = """
import torch
from accelerator import get_accelerator
from op_builder import Binding, load_inline
from op_builder.cpu import CPUAdamBuilder
from op_builder.errors import IncompatibleOpError
from op_builder.ops import CPUAdam

param = torch.ones(3, requires_grad=True)
param.grad = torch.ones(3)
CPUAdam([param], lr=0.5).step()
print(param.tolist())
try:
    CPUAdamBuilder().load().ops.replace_grads(123456789, [])
except ValueError as error:
    print(error)
print(get_accelerator().create_op_builder("PinMemoryBuilder").load().pin_memory(torch.ones(2)).tolist())
try:
    load_inline("twice", "torch::Tensor twice(torch::Tensor x) { return x * 2; }", functions="twice")
except IncompatibleOpError as error:
    print(error)
"""


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
    assert "Prepared list 123456789 does not exist" in output
    assert "it compiles with libc++" in output
    assert "declare BINDING = Binding.STABLE" in output
    report = run(sys.executable, "-m", "op_builder.report", "--json", cwd=tmp_path, **variables)
    toolchains = json.JSONDecoder().raw_decode(report)[0]["environment"]["toolchains"]
    assert str(packages) in json.dumps(toolchains["c++"])
