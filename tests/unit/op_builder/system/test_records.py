"""A record of an answer saves work, and is dropped when a file from which it was worked out changes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from op_builder.system.records import Memo, is_count, is_text
from tests.support.waiting import wait_until

ANSWER = {"answer": is_count}


def counted(*files: Path) -> Callable[[], tuple[dict[str, Any], list[str]]]:
    """Works out an answer from the files: 1 the first time, then 2."""
    numbers = itertools.count(1)
    return lambda: ({"answer": next(numbers)}, [str(path) for path in files])


def test_an_answer_is_worked_out_once_until_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "tool"
    file.write_text("1")
    answer, memo = counted(file), Memo(tmp_path / "memo")
    for each in (memo, memo, Memo(tmp_path / "memo")):  # the last one as in another process
        assert each.get("x", ANSWER, answer) == {"answer": 1}
    file.write_text("another size")
    assert memo.get("x", ANSWER, answer) == {"answer": 2}


def test_an_unwritable_directory_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer, memo = counted(tmp_path), Memo(tmp_path / "file" / "memo")
    for _ in range(2):
        assert memo.get("x", ANSWER, answer) == {"answer": 1}


def test_a_fact_of_another_version_is_worked_out_again(tmp_path: Path) -> None:
    answer = counted(tmp_path)
    Memo(tmp_path / "memo").get("x", ANSWER, answer)
    newer = {**ANSWER, "detail": is_text}
    fact = {"answer": 7, "detail": ""}
    assert Memo(tmp_path / "memo").get("x", newer, lambda: (fact, [])) == fact


def test_waiting_for_a_process_that_computes_the_same_fact_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def open_lock(directory: Path, name: str) -> IO[str]:
        return (directory / name).open("a+")

    def memo() -> Memo:
        return Memo(tmp_path, open_lock=open_lock)

    def compute() -> tuple[dict[str, Any], list[str]]:
        wait_until(lambda: "Still waiting" in caplog.text)
        return {"answer": 1}, []

    with ThreadPoolExecutor() as threads:
        first = threads.submit(memo().get, "x", ANSWER, compute)
        wait_until(lambda: any(path.read_text() for path in tmp_path.glob("*.lock")))
        assert memo().get("x", ANSWER, lambda: ({"answer": 2}, [])) == {"answer": 1} == first.result()
    assert f"Still waiting for process {os.getpid()}" in caplog.text
