"""Collectives in shared memory between real processes: right, the same on all ranks, and the same in every run."""

from __future__ import annotations

import pytest

from op_builder.system.cpu_isa import supported_isas
from tests.support import shm_cases as cases
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


def test_the_small_tensor_may_be_a_part_of_the_large_one() -> None:
    assert values_of_case(cases.in_place_parts, 3) == [True] * 3


def test_nan_wins() -> None:
    assert values_of_case(cases.not_a_number, 2) == [True] * 2


@pytest.mark.parametrize("isa", supported_isas()[:-1])
def test_instruction_sets_give_the_same_bits(isa: str) -> None:
    for dtype in DTYPES:
        best = values_of_case(cases.every_collective, 2, dtype=dtype, counts=(1, 257, 5003))
        assert values_of_case(cases.every_collective, 2, dtype=dtype, counts=(1, 257, 5003), isa=isa) == best


def test_inference_all_reduce() -> None:
    for end in run_case(cases.default_group, 2):
        assert end.error.startswith("OpArgumentError: This process is rank"), end
        assert "of 2, not" in end.error


def test_several_groups_in_one_process() -> None:
    for rank, sums in enumerate(values_of_case(cases.several_groups, 4)):
        pair = [1.0, 5.0][rank // 2]
        assert sums == [6.0, pair, float(rank), pair, 6.0] * 3 + [float(rank)] * 3


def test_ranks_may_be_threads() -> None:
    assert values_of_case(cases.ranks_as_threads, 2) == [True] * 2


def test_memory_is_given_back() -> None:
    # Each round: the two mappings of the group alone. After close(): none, and its descriptors are closed.
    assert values_of_case(cases.memory_is_given_back, 2) == [[2, 2, 2, 0, 2]] * 2


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_tensor_parallel_block_compiles_into_one_graph(backend: str) -> None:
    for to_eager, to_whole in values_of_case(cases.compiled_block, 2, backend=backend):
        assert to_eager <= (0 if backend == "aot_eager" else TOLERANCE)
        assert to_whole < TOLERANCE
