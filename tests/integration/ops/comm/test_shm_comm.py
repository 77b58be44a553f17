"""Collectives in shared memory between real processes: right, the same on all ranks, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from op_builder.system.cpu_isa import supported_isas
from tests.support.shm_ranks import Ranks

DTYPES = ("float32", "bfloat16", "float16", "int32")
# Nothing, one, around a vector, the last that all read whole, the first that is shared out, one and several chunks.
COUNTS = (0, 1, 63, 257, 1024, 1025, 2049, 5003, 131_073, 262_147)
# Sums of 64 and 128 products of numbers around 1 in another order: some 1e-6 each time, and two layers of it.
TOLERANCE = 2e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_has_the_same_bits_on_all_ranks_on_any_memory_and_in_every_run(
    ranks: Ranks, dtype: str
) -> None:
    results = [
        *ranks.values("every_collective", 3, dtype=dtype, counts=COUNTS),
        *ranks.values("every_collective", 3, dtype=dtype, counts=COUNTS, symmetric=True),
    ]
    assert results == results[:1] * 6


@pytest.mark.parametrize("size", [1, 2, 8])
def test_fewer_and_more_ranks_than_cores(ranks: Ranks, size: int) -> None:
    results = ranks.values("every_collective", size, dtype="bfloat16", counts=(0, 1, 1000, 70_001))
    assert results == results[:1] * size


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "mib", "symmetric"), [(2, 64, False), (2, 64, True), (5, 5, True), (8, 5, False)])
def test_every_collective_of_large_tensors(ranks: Ranks, dtype: str, size: int, mib: int, symmetric: bool) -> None:
    count = (mib << 20) // (4 * size) + 3
    results = ranks.values("every_collective", size, dtype=dtype, counts=(count,), symmetric=symmetric)
    assert results == results[:1] * size


def test_the_small_tensor_may_be_a_part_of_the_large_one(ranks: Ranks) -> None:
    assert ranks.values("in_place_parts", 3) == [True] * 3


def test_bytes_of_any_type_are_gathered_and_broadcast(ranks: Ranks) -> None:
    assert ranks.values("bytes_of_any_type", 3) == [True] * 3


def test_nan_wins(ranks: Ranks) -> None:
    assert ranks.values("not_a_number", 2) == [True] * 2


@pytest.mark.parametrize("isa", supported_isas()[:-1])
def test_instruction_sets_give_the_same_bits(ranks: Ranks, isa: str) -> None:
    for dtype in DTYPES:
        best = ranks.values("every_collective", 2, dtype=dtype, counts=(1, 257, 5003))
        assert ranks.values("every_collective", 2, dtype=dtype, counts=(1, 257, 5003), isa=isa) == best


def test_inference_all_reduce(ranks: Ranks) -> None:
    for end in ranks.run("default_group", 2):
        assert end.error.startswith("OpArgumentError: This process is rank"), end
        assert "of 2, not" in end.error


def test_several_groups_in_one_process(ranks: Ranks) -> None:
    for rank, sums in enumerate(ranks.values("several_groups", 4)):
        pair = [1.0, 5.0][rank // 2]
        assert sums == [6.0, pair, float(rank), pair, 6.0] * 3 + [float(rank)] * 3


def test_ranks_may_be_threads(ranks: Ranks) -> None:
    assert ranks.values("ranks_as_threads", 2) == [True] * 2


def test_memory_is_given_back(ranks: Ranks) -> None:
    # Each round: the two mappings of the group alone. After close(): none, and its descriptors are closed.
    assert ranks.values("memory_is_given_back", 2) == [[2, 2, 2, 0, 2]] * 2


@pytest.fixture(scope="module")
def compiling_ranks() -> Iterator[Ranks]:
    processes = Ranks("--compiler")
    yield processes
    processes.close()


@pytest.mark.parametrize("in_place", [False, True], ids=["functional", "in place"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_tensor_parallel_block_compiles_into_one_graph(compiling_ranks: Ranks, backend: str, in_place: bool) -> None:
    for to_eager, to_whole in compiling_ranks.values("compiled_block", 2, backend=backend, in_place=in_place):
        assert to_eager <= (0 if backend == "aot_eager" else TOLERANCE)
        assert to_whole < TOLERANCE
