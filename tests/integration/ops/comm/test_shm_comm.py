"""Collectives in shared memory between real processes: right, the same on all ranks, and the same in every run.

And what becomes of the others when a rank dies, stays away, leaves or does something else; and of the memory.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from op_builder.system.cpu_isa import supported_isas
from tests.support import shm_cases as cases
from tests.support.foreign_package import output_of
from tests.support.launching import free_port
from tests.support.shm_cases import run_case, values_of_case

# Nothing, one, around a vector, the last that all read whole, the first that is shared out, one and several chunks.
COUNTS = (0, 1, 63, 257, 1024, 1025, 2049, 5003, 131_073, 262_147)
# Sums of 64 and 128 products of numbers around 1 in another order: some 1e-6 each time, and two layers of it.
TOLERANCE = 2e-5


@pytest.mark.parametrize(
    ("size", "dtype", "counts", "options"),
    [
        *((3, dtype, COUNTS, {"symmetric": symmetric}) for dtype in cases.DTYPES for symmetric in (False, True)),
        *((size, "bfloat16", (0, 1, 1000, 70_001), {}) for size in (1, 8)),  # fewer and more ranks than cores
        *((2, dtype, (1, 257, 5003), {"isa": isa}) for dtype in cases.DTYPES for isa in supported_isas()[:-1]),
        pytest.param(2, "float32", (4 << 20 | 3,), {}, marks=pytest.mark.slow),
        pytest.param(2, "bfloat16", (4 << 20 | 3,), {"symmetric": True}, marks=pytest.mark.slow),
        pytest.param(8, "int32", (160 << 10 | 3,), {}, marks=pytest.mark.slow),
    ],
)
def test_every_collective_gives_the_promised_bits(
    size: int, dtype: str, counts: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Those of a reduction in the order of the ranks: on all ranks, in every run, for every instruction set."""
    values_of_case(cases.every_collective, size, dtype=dtype, counts=counts, **options)


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


# Groups have no timeout here unless a case passes one: what a test sees is not the end of patience.


@pytest.mark.parametrize(
    ("collective", "count", "symmetric"),
    [
        *((name, 500_000, False) for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")),
        *(("all_reduce", 10, False), ("all_reduce", 500_000, True), ("broadcast", 500_000, True)),
    ],
)
def test_a_rank_that_is_killed_is_named_and_the_group_is_broken(collective: str, count: int, symmetric: bool) -> None:
    *others, victim = run_case(cases.one_is_killed, 3, collective=collective, count=count, symmetric=symmetric)
    assert victim.signal == signal.SIGKILL
    for end in others:
        first, second = end.value[:3], end.value[3:]
        assert first == second
        # Who notices second may hear it of the first.
        assert first[1:] == [2, collective] or "gave up because of rank 2" in first[0]
        assert f"{collective} of" in first[0]
    assert any("rank 2 died" in end.value[0] for end in others)


def test_a_rank_that_dies_while_the_group_is_made() -> None:
    *others, _ = run_case(cases.killed_while_meeting, 3)
    for end in others:
        # A late rank may find that another rank gave up and ended; an early one has its memory.
        assert re.search(r"Rank [012] ended while it joined group|rank [012] died|because of rank 2", end.error), end


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("late", r"rank 1 is alive but did not take part, after waiting \d"),
        ("closes", "rank 1 has closed the group"),
        ("ends", "rank 1 has closed the group"),
    ],
)
def test_a_rank_that_lives_but_does_not_come_or_has_left_is_named(how: str, message: str) -> None:
    first, other = run_case(cases.one_is_missing, 2, how=how)
    assert (first.facts["rank"], first.facts["operation"]) == (1, "all_reduce")
    assert re.search(message, first.error), first
    assert other.error == ""


@pytest.mark.parametrize(("closes", "end"), [(False, ""), (True, "SystemExit: 0")])
def test_a_handler_that_uses_the_group_gets_an_error_and_one_may_close_it_and_exit(closes: bool, end: str) -> None:
    first, other = run_case(cases.handled, 2, closes=closes)
    assert (first.error, other.error) == (end, "")


MAKE = """
import ctypes, os
from op_builder.cpu import ShareMemCommBuilder
group = ShareMemCommBuilder().load().new_group(1, 0)
assert group.empty_symmetric(1 << 20).sum() == 0
assert ctypes.c_uint.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "faulty_calls_failed").value > 0
"""


def test_signals_do_not_keep_memory_from_being_made(faulty_calls: Path) -> None:
    # Kernels differ in whether a signal ends fallocate(2); here one does.
    output_of("-c", MAKE, LD_PRELOAD=str(faulty_calls), FAULTY_PERIOD="2")


def test_a_forked_child_is_no_rank_and_keeps_no_rank_alive() -> None:
    parent, other = run_case(cases.child_of_a_rank, 2)
    assert parent.signal == signal.SIGKILL
    of_the_rank, of_the_child = other.value.split("\nOpArgumentError: ")
    assert "rank 0 died" in of_the_rank
    assert of_the_child.startswith("This process is a fork of the rank that made the group")


def test_more_than_the_free_memory_is_refused_before_allocation() -> None:
    for end in run_case(cases.too_much, 2):
        assert f"2 ranks need {2 << 50} bytes of shared memory ({1 << 50} each)" in end.error
        assert "are available" in end.error


def test_groups_of_one_name_on_one_store_are_an_error() -> None:
    ends = run_case(cases.same_name, 4)
    assert any("already has a rank 0 of group" in end.error for end in ends[:2])


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be had by root alone")
def test_another_user_gets_no_memory() -> None:
    first, stranger = run_case(cases.another_user, 2)
    assert "waited 3 s for rank 1" in first.error  # the stranger was none
    assert first.facts["rank"] == 1
    assert (stranger.error, stranger.value) == ("", [])
