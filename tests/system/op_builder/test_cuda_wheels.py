"""The CUDA toolkit of NVIDIA's wheels compiles where the system has none."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import Binding, env
from op_builder.builder.inline import recipe_spec
from op_builder.cache.store import Cache
from op_builder.cuda import FusedLionBuilder
from op_builder.recipe import Recipe
from op_builder.toolchains.cuda import find_cuda
from tests.support.builds import compile_spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="other wheels"),
]

KERNEL = """#include <cuda_fp16.h>
#include <thrust/complex.h>
__global__ void turn(thrust::complex<float>* x, __half* y) { x[0] *= thrust::complex<float>(0, 1); y[0] = y[0] + y[1]; }
extern "C" void run(void* x, void* y) { turn<<<1, 1>>>((thrust::complex<float>*)x, (__half*)y); }
"""
MODULE = "#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages that the message about a missing toolkit names."""
    site = tmp_path_factory.mktemp("wheels")
    named = "cuda-toolkit[cccl,crt,cudart,nvcc,nvvm]==13.*"
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), named]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{named} cannot be installed: {done.stderr.strip()[-200:]}")
    return site


def test_ops_compile_and_link(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("op_builder.toolchains.cuda.USUAL_HOME", tmp_path)
    monkeypatch.syspath_prepend(str(wheels))
    cache = Cache(tmp_path / "cache")
    with env.scope(PATH="/usr/bin:/bin", CUDA_HOME=None, CUDA_PATH=None, TORCH_CUDA_ARCH_LIST="9.0"):
        assert find_cuda(cache.memo).home == (wheels / "nvidia" / "cu13").resolve()
        # The second has headers of three wheels, and a binding on torch's C++ API.
        texts, flags = {"turn.cu": KERNEL, "module.cpp": MODULE}, ("-U__CUDA_NO_HALF_OPERATORS__",)
        turn = Recipe("turn", Binding.TORCH, (), texts, nvcc_flags=flags)
        for spec in (FusedLionBuilder().spec(), recipe_spec(turn)):
            entry = compile_spec(spec, cache)
            assert b"-arch sm_90" in entry.artifact.read_bytes()
