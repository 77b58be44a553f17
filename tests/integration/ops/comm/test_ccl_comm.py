"""ccl_comm: real oneCCL between real processes, also when one of them is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ccl_programs import needs_oneccl
from tests.support.rank_processes import run_ranks, values

PROGRAM = "ccl_programs"

pytestmark = needs_oneccl


def ranks(function: str, size: int, directory: Path, **options: Any) -> list[Any]:
    return values(run_ranks(PROGRAM, function, size, directory, **options))


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_collective_type_and_group(size: int, tmp_path: Path) -> None:
    for result in ranks("everything", size, tmp_path):
        assert set(result["collectives"]) == {
            *("broadcast", "all_reduce", "inference_all_reduce", "all_reduce_caching", "barrier")
        }


def test_a_killed_rank_is_an_error_within_the_timeout_and_the_process_ends_and_loses_no_output(tmp_path: Path) -> None:
    dead, survivor = run_ranks(PROGRAM, "a_rank_dies", 2, tmp_path)
    assert dead.status == -9
    assert survivor.status == 0, survivor.output
    assert "kept by the C library until the end" in survivor.output


def test_oneccl_never_writes_to_the_freed_memory_of_a_compiled_all_reduce(tmp_path: Path) -> None:
    assert ranks("a_compiled_all_reduce_times_out", 2, tmp_path) == [True, True]


def test_a_rank_that_never_comes_is_an_error_within_the_timeout(tmp_path: Path) -> None:
    ranks("a_rank_does_not_come", 2, tmp_path)


def test_a_signal_ends_the_wait_of_an_inference_all_reduce(tmp_path: Path) -> None:
    assert ranks("an_interrupted_wait", 2, tmp_path) == ["KeyboardInterrupt", ""]
