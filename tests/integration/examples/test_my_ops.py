"""The op of the template of ``accel-ops new``; test_templates.py installs the package and uses it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder import env
from op_builder.toolchains.sycl_runtime import find_runtime
from tests.support.builds import built_by_command

TEMPLATE = Path(__file__).parents[3] / "examples" / "my_ops"
DTYPES = [torch.float32, torch.bfloat16]
# More rows than threads and more than one task's, long rows, one column, nothing at all, and odd lengths.
SHAPES = [(1, 1), (7, 33), (2, 3, 129), (5000, 17), (3, 20001), (257,), (0, 5), (4, 0)]


@pytest.fixture(scope="module")
def my_ops() -> Iterator[Any]:
    """The imported package."""
    sys.path.insert(0, str(TEMPLATE))
    try:
        import my_ops

        yield my_ops
    finally:
        sys.path.remove(str(TEMPLATE))
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_ops"]:
            del sys.modules[name]


class Case:
    """Arguments, and what is to come out of them."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, eps: float = 1e-6) -> None:
        generator = torch.Generator().manual_seed(sum(shape))
        self.x, self.residual = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        self.weight = torch.randn(shape[-1], generator=generator).to(dtype)
        self.eps = eps
        self.sum = self.x + self.residual  # rounded as each of torch's ops rounds
        exact = self.sum.double()
        scale = (exact.square().mean(-1, keepdim=True) + eps).rsqrt()
        self.out = exact * scale * self.weight.double()

    def check(self, out: torch.Tensor, residual: torch.Tensor) -> None:
        assert torch.equal(residual, self.sum)
        # In units of float's rounding error: adding up n squares, all positive, costs n at most, of which the root
        # leaves half; the other operations and eps some more. Rounding to bfloat16 comes on top.
        columns = self.x.shape[-1]
        rtol = (columns / 2 + 8) * 2.0**-24 + (2.0**-8 if out.dtype is torch.bfloat16 else 0)
        torch.testing.assert_close(out.double(), self.out, rtol=rtol, atol=1e-30)


@pytest.fixture(scope="module")
def sycl_op(my_ops: Any) -> Any:
    """The SYCL op of the package, for CPU tensors through a SYCL CPU device."""
    if find_runtime() is None or shutil.which("g++") is None:
        pytest.skip("needs the SYCL runtime (the extra sycl) and g++")
    return my_ops.builders.MyOpsAddRmsNormSyclBuilder().load()


CUDA = pytest.param(
    "cuda", marks=(pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))
)


@pytest.fixture(params=["cpu", CUDA, "sycl"])
def add_rms_norm(request: pytest.FixtureRequest, my_ops: Any) -> Callable[[Case], torch.Tensor]:
    """The function at each place, of a case's tensors; it changes the case's residual."""
    sycl_op = request.getfixturevalue("sycl_op") if request.param == "sycl" else None

    def call(case: Case) -> torch.Tensor:
        if sycl_op is not None:
            out = torch.empty_like(case.x)
            sycl_op.add_rms_norm(out, case.residual, case.x, case.weight, case.eps)
            return out
        x, residual, weight = (each.to(request.param) for each in (case.x, case.residual, case.weight))
        result: torch.Tensor = my_ops.add_rms_norm(x, residual, weight, case.eps).cpu()
        case.residual.copy_(residual)
        return result

    return call


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_a_float64_reference(
    add_rms_norm: Callable[[Case], torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    case = Case(shape, dtype, eps=2.5 if shape == (7, 33) else 1e-6)
    x, weight = case.x.clone(), case.weight.clone()
    case.check(add_rms_norm(case), case.residual)
    assert torch.equal(x, case.x)
    assert torch.equal(weight, case.weight)


def test_the_sycl_op_takes_more_rows_than_a_launch_has_groups_of_256(sycl_op: Any) -> None:
    case = Case((2**23, 1), torch.float32)
    out = torch.full_like(case.x, -1.0)
    sycl_op.add_rms_norm(out, case.residual, case.x, case.weight, case.eps)
    case.check(out, case.residual)


X = torch.ones(2, 4)
BAD = {
    "weight of another length": ({"weight": torch.ones(5)}, "one element for each"),
    "weight of another dtype": ({"weight": torch.ones(4).double()}, "weight and x are of different dtypes"),
    "residual of another dtype": ({"residual": X.bfloat16()}, "residual and x are of different dtypes"),
    "residual of another shape": ({"residual": torch.ones(4, 2)}, "residual and x are of different shapes"),
    "half": ({"x": X.half()}, "x is of dtype Half; float32 or bfloat16 is needed"),
    "no dimension": ({"x": torch.tensor(1.0), "residual": torch.tensor(1.0)}, "one element for each"),
    "x not contiguous": ({"x": torch.ones(4, 2).t()}, "x is not contiguous"),
    "weight on another device": ({"weight": torch.ones(4, device="meta")}, "devices differ: cpu, cpu, meta"),
    "a gradient wanted": ({"weight": torch.ones(4, requires_grad=True)}, "has no backward"),
    "another device": ({name: X.to("meta") for name in ("x", "residual", "weight")}, "no kernels for 'meta'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(my_ops: Any, case: str) -> None:
    given: dict[str, torch.Tensor] = {"x": X, "residual": torch.full((2, 4), 3.0), "weight": torch.ones(4)}
    changes, reason = BAD[case]
    given.update(changes)
    before = given["residual"].clone()
    with pytest.raises(ValueError, match=reason):
        my_ops.add_rms_norm(**given)
    assert given["residual"].is_meta or torch.equal(given["residual"], before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", ["cpu", "sycl"])
def test_torch_accepts_the_op(request: pytest.FixtureRequest, my_ops: Any, place: str, dtype: torch.dtype) -> None:
    ops = my_ops.BUILDERS["cpu"]().load() if place == "cpu" else request.getfixturevalue("sycl_op")
    case = Case((3, 33), dtype)
    given = (torch.empty_like(case.x), case.residual, case.x, case.weight, case.eps)
    assert set(torch.library.opcheck(ops.add_rms_norm.default, given).values()) == {"SUCCESS"}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_nvcc_compiles_the_cuda_op_for_each_architecture(my_ops: Any) -> None:
    builder = my_ops.builders.MyOpsAddRmsNormCudaBuilder()
    with env.scope(TORCH_CUDA_ARCH_LIST="8.0;9.0"):
        (outcome,) = built_by_command([builder], [builder.name])
    binary = Path(outcome.path)
    assert "warning" not in (binary.parent / "build.log").read_text()
    assert {found.decode() for found in re.findall(rb"-arch (sm_\d+)", binary.read_bytes())} == {"sm_80", "sm_90"}
