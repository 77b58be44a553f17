"""Collectives in shared memory between real processes: right, the same on all ranks, and the same in every run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from op_builder.system.cpu_isa import supported_isas
from tests.support import shm_cases as cases
from tests.support.launching import free_port
from tests.support.shm_cases import run_case, values_of_case

DTYPES = ("float32", "bfloat16", "float16", "int32")
# Nothing, one, around a vector, the last that all read whole, the first that is shared out, one and several chunks.
COUNTS = (0, 1, 63, 257, 1024, 1025, 2049, 5003, 131_073, 262_147)
# Sums of 64 and 128 products of numbers around 1 in another order: some 1e-6 each time, and two layers of it.
TOLERANCE = 2e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_has_the_same_bits_on_all_ranks_on_any_memory_and_in_every_run(dtype: str) -> None:
    results = [
        *values_of_case(cases.every_collective, 3, dtype=dtype, counts=COUNTS),
        *values_of_case(cases.every_collective, 3, dtype=dtype, counts=COUNTS, symmetric=True),
    ]
    assert results == results[:1] * 6


@pytest.mark.parametrize("size", [1, 8])
def test_fewer_and_more_ranks_than_cores(size: int) -> None:
    results = values_of_case(cases.every_collective, size, dtype="bfloat16", counts=(0, 1, 1000, 70_001))
    assert results == results[:1] * size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "size", "mib", "symmetric"),
    [("float32", 2, 32, False), ("bfloat16", 2, 32, True), ("int32", 8, 5, False)],
)
def test_every_collective_of_large_tensors(dtype: str, size: int, mib: int, symmetric: bool) -> None:
    count = (mib << 20) // (4 * size) + 3
    results = values_of_case(cases.every_collective, size, dtype=dtype, counts=(count,), symmetric=symmetric)
    assert results == results[:1] * size


@pytest.mark.parametrize("isa", supported_isas()[:-1])
def test_instruction_sets_give_the_same_bits(isa: str) -> None:
    for dtype in DTYPES:
        best = values_of_case(cases.every_collective, 2, dtype=dtype, counts=(1, 257, 5003))
        assert values_of_case(cases.every_collective, 2, dtype=dtype, counts=(1, 257, 5003), isa=isa) == best


def test_inference_all_reduce() -> None:
    for end in run_case(cases.default_group, 2, port=free_port()):
        assert end.error.startswith("OpArgumentError: This process is rank"), end
        assert "of 2, not" in end.error


@pytest.mark.parametrize("case", cases.HOLDS, ids=lambda case: case.__name__)
def test_holds_on_all_ranks(case: Callable[[cases.Place], None]) -> None:
    values_of_case(case, cases.HOLDS[case])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_tensor_parallel_block_compiles_into_one_graph(backend: str) -> None:
    for to_eager, to_whole in values_of_case(cases.compiled_block, 2, backend=backend, port=free_port()):
        assert to_eager <= (0 if backend == "aot_eager" else TOLERANCE)
        assert to_whole < TOLERANCE
