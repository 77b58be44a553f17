"""What becomes of the others when a rank dies, stays away, leaves or does something else; and of the memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import env
from tests.support.rank_processes import ROOT
from tests.support.shm_ranks import run_case, values_of_case

# Groups have no timeout here unless a case passes one: what a test sees is not the end of patience.


@pytest.mark.parametrize(
    ("collective", "count", "symmetric"),
    [
        *((name, 500_000, False) for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")),
        *(("all_reduce", 10, False), ("all_reduce", 500_000, True), ("broadcast", 500_000, True)),
    ],
)
def test_a_rank_that_is_killed_is_named_and_the_group_is_broken(collective: str, count: int, symmetric: bool) -> None:
    *others, victim = run_case("one_is_killed", 3, collective=collective, count=count, symmetric=symmetric)
    assert victim.signal == signal.SIGKILL
    for end in others:
        first, second = end.value[:3], end.value[3:]
        assert first == second
        # Who notices second may hear it of the first.
        assert first[1:] == [2, collective] or "gave up because of rank 2" in first[0]
        assert f"{collective} of" in first[0]
    assert any("rank 2 died" in end.value[0] for end in others)


def test_a_rank_that_dies_while_the_group_is_made() -> None:
    *others, _ = run_case("killed_while_meeting", 3)
    for end in others:
        # One that comes later may find another gone that has given up; one that comes before has its memory.
        assert re.search(r"Rank [012] ended while it joined group|rank [012] died|because of rank 2", end.error), end


def test_a_rank_that_never_comes() -> None:
    first, _, third = run_case("one_never_comes", 3, timeout_s=3)
    for rank, end in ((0, first), (2, third)):
        assert f"Rank {rank} of 3 waited 3 s for rank 1 to join group" in end.error
        assert end.facts["rank"] == 1


def test_a_rank_that_lives_but_does_not_come() -> None:
    first, late = run_case("one_is_late", 2)
    assert (first.facts["rank"], first.facts["operation"]) == (1, "all_reduce")
    assert "rank 1 is alive but did not take part, after waiting 0." in first.error
    assert late.error == ""  # all that it needs was there


@pytest.mark.parametrize("ends", [False, True])
def test_a_rank_that_has_closed_the_group_or_ended(ends: bool) -> None:
    first, other = run_case("one_has_left", 2, ends=ends)
    assert (first.facts["rank"], first.facts["operation"]) == (1, "all_reduce")
    assert "rank 1 has closed the group" in first.error
    assert other.error == ""


def test_closing_the_group_ends_the_wait_of_another_thread() -> None:
    message, _ = values_of_case("closed_meanwhile", 2)
    assert message.startswith("SharedMemoryCommError: ")
    assert "another thread of this rank closed the group" in message


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("count", "rank 0 called all_reduce (sum) of 5 float32, rank 1 called all_reduce (sum) of 500000 float32"),
        ("reduction", "rank 0 called all_reduce (sum) of 6 float32, rank 1 called all_reduce (max) of 6 float32"),
        ("collective", "rank 0 called all_gather of 24 bytes of Float, rank 1 called barrier"),
        (
            "source",
            "rank 0 called broadcast of 24 bytes of Float from rank 1, rank 1 called broadcast of 24 bytes of Float",
        ),
        ("offset", "float32 in symmetric memory 0 at byte 4, rank 1 called all_reduce (sum) of 200000 float32 in symm"),
    ],
)
def test_different_calls_are_an_error_on_all_ranks(what: str, message: str) -> None:
    first, second = values_of_case("different_calls", 2, what=what)
    assert first.startswith("SharedMemoryCommError: ")
    assert second.startswith("SharedMemoryCommError: ")
    assert message in first
    assert "rank 1 called" in second


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, "KeyboardInterrupt: "), (signal.SIGALRM, "LookupError: from the handler")],
)
def test_the_handler_of_a_signal_ends_a_wait(number: int, raised: str) -> None:
    (first, again), (other,) = values_of_case("interrupted", 2, number=int(number))
    assert first == raised
    assert "a signal ended the wait for rank 1" in again
    assert other.startswith("SharedMemoryCommError: ")
    assert "rank 0 gave up when it was interrupted" in other


def test_a_handler_that_returns_changes_nothing() -> None:
    assert values_of_case("handled", 2, what="returns") == [[""], []]


def test_a_handler_that_uses_the_group_gets_an_error_and_leaves_it_usable() -> None:
    (message,), _ = values_of_case("handled", 2, what="uses")
    assert "Do not use the group in a signal handler" in message


def test_a_handler_that_closes_the_group_and_exits_ends_the_process_as_it_says() -> None:
    first, other = run_case("handled", 2, what="closes")
    assert (first.error, other.error) == ("SystemExit: 0", "")


MAKE = """
import ctypes, os
from op_builder.cpu import ShareMemCommBuilder
group = ShareMemCommBuilder().load().new_group(1, 0)
assert group.empty_symmetric(1 << 20).sum() == 0
assert ctypes.c_uint.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "faulty_calls_failed").value > 0
"""


def test_signals_do_not_keep_memory_from_being_made(faulty_calls: Path) -> None:
    # Kernels differ in whether a signal ends fallocate(2); here one does.
    environment = env.child_environment(PYTHONPATH=str(ROOT), LD_PRELOAD=str(faulty_calls), FAULTY_PERIOD="2")
    subprocess.run([sys.executable, "-c", MAKE], env=environment, timeout=240, check=True)


def test_memory_that_one_rank_cannot_map_is_nobodys() -> None:
    first, second = values_of_case("one_cannot_map", 2)
    assert first[0] == "SharedMemorySpaceError"
    assert "Cannot allocate memory" in first[1]
    assert second[0] == "SharedMemoryCommError"
    assert "Rank 0 cannot map" in second[1]
    assert second[2] == 0
    assert first[3] == second[3] == 2  # the group's own alone


def test_other_threads_run_meanwhile() -> None:
    assert values_of_case("other_threads_run", 2) == [True] * 2


def test_the_child_of_a_rank_is_none_and_does_not_keep_it_alive() -> None:
    parent, other = run_case("child_of_a_rank", 2)
    assert parent.signal == signal.SIGKILL
    of_the_rank, of_the_child = other.value.split("\nOpArgumentError: ")
    assert "rank 0 died" in of_the_rank
    assert of_the_child.startswith("This process is a fork of the rank that made the group")


@pytest.mark.parametrize("for_a_group", [False, True])
def test_no_space(for_a_group: bool) -> None:
    needed = 2101248 if for_a_group else 4 << 20
    first, second = values_of_case("no_space", 2, for_a_group=for_a_group)
    assert first[0] == "SharedMemorySpaceError"
    assert f"Allocating {needed} bytes of shared memory failed: File too large." in first[1]
    assert first[2] == needed
    assert second[0] == "SharedMemoryCommError"
    assert "Rank 0 cannot take part" in second[1]


def test_more_than_there_is_is_refused_before_it_is_taken() -> None:
    for end in run_case("too_much", 2):
        assert f"2 ranks need {2 << 50} bytes of shared memory ({1 << 50} each)" in end.error
        assert "are available" in end.error


def test_groups_of_one_name_on_one_store_are_found_out() -> None:
    ends = run_case("same_name", 4)
    assert any("already has a rank 0 of group" in end.error for end in ends[:2])


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be had by root alone")
def test_another_user_gets_no_memory() -> None:
    first, stranger = run_case("another_user", 2)
    assert "waited 3 s for rank 1" in first.error  # the stranger was none
    assert (stranger.error, stranger.value) == ("", [])
