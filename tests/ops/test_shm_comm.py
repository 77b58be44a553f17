"""Collectives in shared memory between real processes: right, the same on all ranks, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shm_ranks import Ranks, shared_files

DTYPES = ("float32", "bfloat16", "float16", "int32")
# Nothing, one, around a vector, the last that all read whole, the first that is shared out, one and several chunks.
COUNTS = (0, 1, 2, 63, 257, 1024, 1025, 2048, 2049, 5003, 131_073, 262_147)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    before = shared_files()
    processes = Ranks()
    yield processes
    processes.close()
    assert shared_files() <= before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 3])
def test_every_collective(ranks: Ranks, size: int, dtype: str) -> None:
    told = ranks.values("every_collective", size, dtype=dtype, counts=COUNTS)
    assert all(bits == told[0] for bits in told)
    assert ranks.values("every_collective", size, dtype=dtype, counts=COUNTS)[0] == told[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_on_symmetric_memory(ranks: Ranks, dtype: str) -> None:
    told = ranks.values("every_collective", 3, dtype=dtype, counts=COUNTS, symmetric=True)
    assert all(bits == told[0] for bits in told)
    assert ranks.values("every_collective", 3, dtype=dtype, counts=COUNTS)[0] == told[0]  # as on any memory


@pytest.mark.parametrize("size", [1, 4, 8])
def test_more_ranks_than_cores(ranks: Ranks, size: int) -> None:
    told = ranks.values("every_collective", size, dtype="bfloat16", counts=(0, 1, 1000, 70_001))
    assert all(bits == told[0] for bits in told)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [4, 5, 6, 7, 8])
def test_every_collective_of_more_ranks(ranks: Ranks, size: int, dtype: str) -> None:
    told = ranks.values("every_collective", size, dtype=dtype, counts=COUNTS)
    assert all(bits == told[0] for bits in told)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8])
def test_every_collective_of_4_mb(ranks: Ranks, size: int, dtype: str) -> None:
    told = ranks.values("every_collective_of_size", size, dtype=dtype, sizes_bytes=(4 << 20, 5_000_011))
    assert all(bits == told[0] for bits in told)


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [False, True], ids=["any memory", "symmetric"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_up_to_256_mb(ranks: Ranks, dtype: str, symmetric: bool) -> None:
    sizes = [(4 << 10) * 4**power for power in range(9)]
    assert sizes[-1] == 256 << 20
    told = ranks.values("every_collective_of_size", 2, dtype=dtype, sizes_bytes=sizes, symmetric=symmetric)
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_of_64_mb_between_8_ranks(ranks: Ranks, dtype: str) -> None:
    told = ranks.values("every_collective_of_size", 8, dtype=dtype, sizes_bytes=(64 << 20,))
    assert all(bits == told[0] for bits in told)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_collective_of_256_mb_between_8_ranks(ranks: Ranks, dtype: str) -> None:
    told = ranks.values("every_collective_of_size", 8, dtype=dtype, sizes_bytes=(256 << 20,))
    assert all(bits == told[0] for bits in told)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 8])
def test_every_collective_on_symmetric_memory_of_more_ranks(ranks: Ranks, size: int, dtype: str) -> None:
    sizes = (0, 4, 4 << 10, 5_000_011)
    told = ranks.values("every_collective_of_size", size, dtype=dtype, sizes_bytes=sizes, symmetric=True)
    assert all(bits == told[0] for bits in told)


def test_the_small_tensor_may_be_a_part_of_the_large_one(ranks: Ranks) -> None:
    assert ranks.values("in_place_parts", 3) == [True] * 3


def test_bytes_of_any_type_are_gathered_and_broadcast(ranks: Ranks) -> None:
    assert ranks.values("bytes_of_any_type", 3) == [True] * 3


def test_nan_wins(ranks: Ranks) -> None:
    assert ranks.values("not_a_number", 2) == [True] * 2


@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_instruction_sets_give_the_same_bits(ranks: Ranks, isa: str) -> None:
    from op_builder.system.cpu_isa import supported_isas

    if isa not in supported_isas():
        pytest.skip(f"this CPU has no {isa}")
    for dtype in DTYPES:
        counts = (1, 257, 5003)
        best = ranks.values("every_collective", 2, dtype=dtype, counts=counts)
        assert ranks.values("every_collective", 2, dtype=dtype, counts=counts, isa=isa) == best


def test_inference_all_reduce(ranks: Ranks) -> None:
    for end in ranks.run("default_group", 2):
        assert end.error.startswith("OpArgumentError: This process is rank"), end
        assert "of 2, not" in end.error


def test_groups_meet_by_the_process_groups_store(ranks: Ranks) -> None:
    assert ranks.values("by_the_process_groups_store", 2) == [True] * 2


def test_several_groups_in_one_process(ranks: Ranks) -> None:
    for rank, told in enumerate(ranks.values("several_groups", 4)):
        pair = [1.0, 5.0][rank // 2]
        assert told == [6.0, pair, float(rank), pair, 6.0] * 3 + [float(rank)] * 3


def test_ranks_may_be_threads(ranks: Ranks) -> None:
    assert ranks.values("ranks_as_threads", 2) == [True] * 2


def test_memory_is_given_back(ranks: Ranks) -> None:
    # Each round: the two mappings of the group alone. After close(): none, and its descriptors are closed.
    assert ranks.values("memory_is_given_back", 2) == [[2, 2, 2, 0, 2]] * 2


def test_two_jobs_at_once(ranks: Ranks) -> None:
    assert ranks.values("two_jobs", 4, users=False) == [[1.0], [1.0], [5.0], [5.0]]


@pytest.mark.parametrize("size", [2, 5])
def test_many_mixed_collectives(ranks: Ranks, size: int) -> None:
    told = ranks.values("soak", size, rounds=1000, seed=size)
    assert len(set(told)) == 1  # each was checked there; here the bits of those that all ranks have alike


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.parametrize(("size", "rounds"), [(2, 97_000), (8, 3_000)])
def test_a_hundred_thousand_mixed_collectives(ranks: Ranks, size: int, rounds: int) -> None:
    assert len(set(ranks.values("soak", size, rounds=rounds, seed=7))) == 1
