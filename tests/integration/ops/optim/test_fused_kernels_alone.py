"""The CUDA kernels of the fused optimizers, without a device.

They are run on the host, through a stand-in for CUDA's headers, and give the bits of the CPU kernels; and they are
compiled by nvcc, where it is.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Sequence

import pytest
import torch

from op_builder import cpu, cuda, env
from op_builder.load import resolver
from op_builder.system.cpu_isa import supported_isas
from tests.support.environments import ROOT
from tests.support.fused_cases import FUSED_KINDS, assert_guards_untouched, moved
from tests.support.optimizer_reference import (
    DTYPES,
    FLOATS,
    LAMB,
    Kind,
    Tensors,
    as_lists,
    load_fused,
    make_tensors,
)

FLAGS = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-shared"),
    *("-fPIC", "-mfma", "-fsanitize=undefined", "-fno-sanitize-recover=all"),
    *("-Icsrc", "-Itests/support/native/cuda_on_host"),
)
MOST_STATES = 3
DTYPE_CODES = {dtype: code for code, dtype in enumerate(FLOATS)}

every_kind = pytest.mark.parametrize("kind", FUSED_KINDS, ids=str)
needs_fma = pytest.mark.skipif("avx2" not in supported_isas(), reason="the CPU has no fused multiply-add")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


class DeviceTensor(ctypes.Structure):
    """As in csrc/kernels/multi_tensor/table.h."""

    _fields_ = (
        *(("param", ctypes.c_void_p), ("grad", ctypes.c_void_p), ("states", ctypes.c_void_p * MOST_STATES)),
        *(("step", ctypes.c_void_p), ("numel", ctypes.c_int64), ("types", ctypes.c_uint8 * 3)),
    )


class Controls(ctypes.Structure):
    """As in csrc/kernels/cuda/multi_tensor.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("noop_flag", "found_inf", "grad_scale", "lr")),
        ("maximize", ctypes.c_bool),
    )


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("kernels") / "fused_on_host.so"
    sources = ["tests/support/native/fused_on_host.cpp", *sorted(map(str, ROOT.glob("csrc/kernels/cuda/*.cu")))]
    subprocess.run(["g++", *FLAGS, "-x", "c++", *sources, "-o", str(library)], check=True, cwd=ROOT)
    return ctypes.CDLL(str(library))


def make_cases(kind: Kind) -> list[Tensors]:
    """Every combination of types at lengths around those of vectors, blocks and chunks; every way to lie in memory.

    More than a table holds, and one that is many chunks long.
    """
    offsets = [*((n,) * 5 for n in (0, 1, 3, 7)), (1, 0, 0, 0, 0), (0, 5, 1, 2, 3), (0, 0, 0, 0, 1)]
    types = [(torch.float32,) * 3, (torch.bfloat16,) * 3, (torch.bfloat16, torch.float32, torch.float32)]
    lengths = (*(i % 5 for i in range(1000)), 100_001)
    return [
        *(moved(make_tensors(kind, n, *each, seed=n)) for each, n in itertools.product(DTYPES, (1, 9, 2049))),
        *(
            moved(make_tensors(kind, n, *each, seed=n), places)
            for places, each, n in itertools.product(offsets, types, (0, 3, 4, 2047, 2048, 5000))
        ),
        *(moved(make_tensors(kind, n, seed=n)) for n in lengths),
    ]


def update(
    kernels: ctypes.CDLL,
    kind: Kind,
    cases: Sequence[Tensors],
    steps: Sequence[torch.Tensor] = (),
    *,
    chunk_size: int = 4096,
    maximize: bool = False,
    **controls: torch.Tensor,
) -> None:
    """One update by the CUDA kernels; ``controls`` are read when they run."""
    given = (DeviceTensor * len(cases))()
    for place, (one, case) in enumerate(zip(given, cases, strict=True)):
        one.param, one.grad = case.param.data_ptr(), case.grad.data_ptr()
        one.states[: len(case.states)] = [state.data_ptr() for state in case.states]
        one.step = steps[place].data_ptr() if steps else None
        one.numel = case.param.numel()
        one.types[:] = [DTYPE_CODES[case.param.dtype], DTYPE_CODES[case.grad.dtype], case.states[0].itemsize == 2]
    control = Controls(maximize=maximize, **{name: tensor.data_ptr() for name, tensor in controls.items()})
    addresses = (ctypes.c_void_p * len(steps))(*(step.data_ptr() for step in steps))
    assert kernels.advance(addresses, len(steps), ctypes.byref(control)) == 0
    options = (ctypes.c_double * len(kind.options))(*map(float, kind.options.values()))
    numbers = (ctypes.c_double(3.0), ctypes.byref(control), ctypes.c_int64(chunk_size))
    assert getattr(kernels, kind.name)(given, ctypes.c_size_t(len(cases)), options, *numbers) == 0


def require_same(kind: Kind, cases: Sequence[Tensors], expected: Sequence[Tensors]) -> None:
    """Equal bits; of LAMB's parameters only nearly, as norms are added up in another order."""
    for case, wanted in zip(cases, expected, strict=True):
        assert_guards_untouched(case)
        assert all(map(torch.equal, case.states, wanted.states))
        assert torch.equal(case.grad, wanted.grad)
        if kind is LAMB:
            torch.testing.assert_close(case.param, wanted.param)
        else:
            assert torch.equal(case.param, wanted.param)


@pytest.mark.slow
@needs_fma
@every_kind
def test_updates_on_the_host_have_the_bits_of_the_cpu_kernels(kernels: ctypes.CDLL, kind: Kind) -> None:
    cases = make_cases(kind)
    again, expected = ([case.clone() for case in cases] for _ in range(2))
    update(kernels, kind, cases)
    load_fused(kind).update_list(as_lists(expected), list(map(float, kind.options.values())), 3)
    require_same(kind, cases, expected)
    if kind is LAMB:
        update(kernels, kind, again)
        assert all(torch.equal(one.param, other.param) for one, other in zip(cases, again, strict=True))


@pytest.mark.slow
@needs_fma
@every_kind
def test_numbers_of_the_device_are_read_when_the_kernels_run(kernels: ctypes.CDLL, kind: Kind) -> None:
    """The rate, the scale of gradients, and the steps, which are counted up; and those that skip the update."""
    cases = make_cases(kind)
    before, expected = ([case.clone() for case in cases] for _ in range(2))
    steps = [torch.tensor(float(i % 3)) for i in range(len(cases))]
    lr, scale, zero = torch.tensor(0.25), torch.tensor(4.0), torch.zeros(1)
    for skip in ({"noop_flag": torch.ones(1, dtype=torch.int32)}, {"found_inf": torch.ones(1)}):
        update(kernels, kind, cases, steps, **skip)
        require_same(kind, cases, before)
        assert [int(step) for step in steps] == [i % 3 for i in range(len(cases))]
    update(kernels, kind, cases, steps, chunk_size=2048, maximize=True, lr=lr, grad_scale=scale, found_inf=zero)
    assert [int(step) for step in steps] == [i % 3 + 1 for i in range(len(cases))]
    options = [float(lr), *list(map(float, kind.options.values()))[1:]]
    for case, step in zip(expected, steps, strict=True):
        scaled = Tensors(case.param, case.grad.float() / -4, case.states)
        load_fused(kind).update_list(as_lists([scaled]), options, int(step))
    require_same(kind, cases, expected)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("name", ["FusedAdamBuilder", "FusedLambBuilder"])
def test_nvcc_compiles_them_without_a_warning(name: str) -> None:
    builder = getattr(cuda, name)()
    with env.scope(TORCH_CUDA_ARCH_LIST="9.0"):
        entry = resolver.compile_now(resolver.Request.of(builder))
    log = (entry.artifact.parent / "build.log").read_text()
    assert "warning" not in log, log
    if torch.version.cuda is None:
        assert entry.manifest.check.startswith("undefined symbols only")
    symbols = subprocess.run(["nm", "-D", "-u", str(entry.artifact)], capture_output=True, text=True, check=True).stdout
    assert "aoti_torch_get_current_cuda_stream" in symbols
    assert "_ZN2at" not in symbols
    assert "_ZN3c10" not in symbols


def test_the_binary_for_cuda_is_the_declaration_of_the_cpu_with_kernels_added() -> None:
    host, device = cpu.FusedAdamBuilder(), cuda.FusedAdamBuilder()
    assert (device.NAME, device.BUILD_VAR) == (host.NAME, host.BUILD_VAR)
    assert device.sources()[: len(host.sources())] == host.sources()
    added = device.sources()[len(host.sources()) :]
    assert added
    assert all(source.endswith(".cu") for source in added)
    assert list(device.filter_ccs(["6.1", "7.0", "9.0a+PTX"])) == ["7.0", "9.0a+PTX"]  # not those that are too old
