"""Importing does nothing; what a new process sees of the accelerator and its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.foreign_package import ROOT, python


def test_the_warning_is_visible_without_logging_and_with_warnings_as_errors() -> None:
    code = "import torch; torch.version.cuda = '12.8'\n"  # as a build that supports a device
    code += "from accelerator import get_accelerator as g; g(); g(); print(g().device_name())\n"
    code += "import sys; assert not {'accelerator.testing', 'accelerator.conformance'} & set(sys.modules)"
    result = python("-W", "error::UserWarning", "-c", code, CUDA_VISIBLE_DEVICES="-1")
    if "cpu" not in result.stdout:
        pytest.skip("this machine has an accelerator")
    assert result.stderr.count("No accelerator was detected") == 1


@pytest.mark.parametrize("name", ["cpu", "npu", None])
def test_a_broken_torch_is_reported(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')\n")
    result = python("-m", "accelerator.report", ACCEL_ACCELERATOR=name, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert result.returncode == 2
    assert "OSError: libtorch_cpu.so: cannot open shared object file" in result.stderr or name == "npu"
    assert "Traceback" not in result.stderr


def test_output_of_a_vendor_package_does_not_break_json(tmp_path: Path) -> None:
    code = "import ctypes, os\nprint('Loading Acme')\nctypes.CDLL(None).puts(b'Loaded in C')\nos.write(1, b'Raw\\n')\n"
    (tmp_path / "torch_npu.py").write_text(f"{code}raise OSError('no driver')\n")
    result = python("-m", "accelerator.report", "--json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    trace = {entry["name"]: entry["reason"] for entry in json.loads(result.stdout)["trace"]}
    assert trace["npu"] == "OSError: no driver"
    assert all(line in result.stderr for line in ("Loading Acme", "Loaded in C", "Raw"))
