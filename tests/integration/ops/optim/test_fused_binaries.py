"""The binaries of the fused optimizers for CUDA, without a device; test_fused_update.py also runs their kernels."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch

from op_builder import cuda, env
from tests.support.builds import compile_op


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("name", ["FusedAdamBuilder", "FusedLambBuilder"])
def test_nvcc_compiles_them_without_a_warning(name: str) -> None:
    builder = getattr(cuda, name)()
    with env.scope(TORCH_CUDA_ARCH_LIST="9.0"):
        entry = compile_op(builder)
    log = (entry.artifact.parent / "build.log").read_text()
    assert "warning" not in log, log
    if torch.version.cuda is None:
        assert entry.manifest.check.startswith("undefined symbols only")
    symbols = subprocess.run(["nm", "-D", "-u", str(entry.artifact)], capture_output=True, text=True, check=True).stdout
    assert "aoti_torch_get_current_cuda_stream" in symbols
    assert "_ZN2at" not in symbols
    assert "_ZN3c10" not in symbols


def test_devices_that_are_too_old_are_left_out() -> None:
    assert list(cuda.FusedAdamBuilder().filter_ccs(["6.1", "7.0", "9.0a+PTX"])) == ["7.0", "9.0a+PTX"]
