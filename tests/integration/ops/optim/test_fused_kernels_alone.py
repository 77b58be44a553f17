"""The CUDA kernels of the fused optimizers, without a device.

They are run on the host, through a stand-in for CUDA's headers, beside plain loops over the same
formulas; and they are compiled by nvcc, where it is.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch

from op_builder import cuda, env
from op_builder.load import resolver

ROOT = Path(__file__).parents[4]
CHECK = ROOT / "tests/support/native/fused_kernel_check.cpp"
# Bytes of a parameter's, a gradient's and a state's elements, for each combination that has a kernel.
TYPES = [
    (param, grad, state)
    for param, grad in itertools.product((4, 2, 2), repeat=2)
    for state in dict.fromkeys((4, param))
]
BUILDERS = ("FusedAdamBuilder", "FusedAmsgradBuilder", "FusedLionBuilder", "FusedLambBuilder")
FLAGS = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Icsrc", "-Itests/support/native/cuda_on_host"),
)


@pytest.mark.slow
def test_kernels_run_on_the_host_update_as_plain_loops_do_and_touch_nothing_else(tmp_path):
    program = tmp_path / "fused_kernel_check"
    kernels = sorted(map(str, (ROOT / "csrc/kernels/cuda").glob("*.cu")))
    command = ["g++", *FLAGS, str(CHECK), "-x", "c++", *kernels, "-o", str(program)]
    subprocess.run(command, check=True, cwd=ROOT)
    run = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "work: every element once" in run.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("name", BUILDERS)
def test_nvcc_compiles_them_without_a_warning_for_each_architecture(name):
    builder = getattr(cuda, name)()
    with env.scope(TORCH_CUDA_ARCH_LIST="8.0;9.0"):
        entry = resolver.compile_now(resolver.Request.of(builder))
    log = (entry.artifact.parent / "build.log").read_text()
    assert "warning" not in log, log
    binary = entry.artifact.read_bytes()
    assert {found.decode() for found in re.findall(rb"-arch (sm_\d+)", binary)} == {"sm_80", "sm_90"}
    if torch.version.cuda is None:
        assert entry.manifest.check.startswith("undefined symbols only")
    symbols = subprocess.run(["nm", "-D", "-u", str(entry.artifact)], capture_output=True, text=True, check=True).stdout
    assert "aoti_torch_get_current_cuda_stream" in symbols
    assert "_ZN2at" not in symbols
    assert "_ZN3c10" not in symbols


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("name", "states"), [("fused_adam", 2), ("fused_amsgrad", 3)])
def test_aligned_elements_are_loaded_and_stored_four_or_eight_at_a_time(tmp_path, name, states):
    text = tmp_path / f"{name}.ptx"
    source = f"csrc/kernels/cuda/{name}.cu"
    command = ["nvcc", "-std=c++17", "-O3", "-fmad=false", "-Icsrc", "-arch=sm_90", "-ptx", source, "-o", str(text)]
    subprocess.run(command, check=True, cwd=ROOT)
    moved = Counter(re.findall(r"\b((?:ld|st)\.global\.v4\.\w+)", text.read_text()))
    expected: Counter[str] = Counter()
    for param, grad, state in TYPES:
        arrays = (param, grad, *[state] * states)
        if max(arrays) == 2:  # eight elements in 16 bytes, one vector of each array under way
            expected.update({"ld.global.v4.u32": 2 + states, "st.global.v4.u32": 1 + states})
            continue
        for role, size in enumerate(arrays):  # four elements, two vectors
            kind = "v4.f32" if size == 4 else "v4.u16"
            expected[f"ld.global.{kind}"] += 2
            expected[f"st.global.{kind}"] += 2 * (role != 1)
    assert moved == expected


@pytest.mark.parametrize("name", BUILDERS)
def test_the_binary_for_cuda_is_the_declaration_of_the_cpu_with_kernels_added(name):
    from op_builder import cpu

    host, device = getattr(cpu, name)(), getattr(cuda, name)()
    assert device.NAME == host.NAME
    assert device.BUILD_VAR == host.BUILD_VAR == f"ACCEL_BUILD_{host.NAME.upper()}"
    added = device.sources()[len(host.sources()) :]
    assert device.sources() == [*host.sources(), *added]
    assert added
    assert all(source.endswith(".cu") for source in added)
    assert not any(source.endswith(".cu") for source in host.sources())
    assert host.plan().uses_cuda is False


def test_architectures_that_are_too_old_are_left_out():
    builder = cuda.FusedAdamBuilder()
    assert list(builder.filter_ccs(["6.1", "7.0", "9.0a+PTX"])) == ["7.0", "9.0a+PTX"]
