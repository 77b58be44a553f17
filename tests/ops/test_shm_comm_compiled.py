"""A tensor-parallel transformer block under torch.compile, without graph breaks, on two real ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shm_ranks import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    processes = Ranks("--compiler")
    yield processes
    processes.close()


# Sums of 64 and 128 products of numbers around 1 in another order: some 1e-6 each time, and two layers of it.
TOLERANCE = 2e-5


@pytest.mark.parametrize("in_place", [False, True], ids=["functional", "in place"])
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["static", "dynamic"])
def test_the_whole_block_is_one_graph(ranks: Ranks, in_place: bool, dynamic: bool) -> None:
    for to_eager, to_whole in ranks.values(
        "compiled_block", 2, backend="aot_eager", in_place=in_place, dynamic=dynamic
    ):
        assert to_eager == 0  # the same kernels
        assert to_whole < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True], ids=["functional", "in place"])
def test_by_inductor(ranks: Ranks, in_place: bool) -> None:
    for to_eager, to_whole in ranks.values("compiled_block", 2, backend="inductor", in_place=in_place, dynamic=False):
        assert to_eager < TOLERANCE
        assert to_whole < TOLERANCE
