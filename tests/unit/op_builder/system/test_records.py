"""A record of an answer saves work, and is dropped when a file from which it was worked out changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from op_builder.system.records import Memo, is_count, is_text

ANSWER = {"answer": is_count}


class Counter:
    def __init__(self, *files: Path) -> None:
        self.calls = 0
        self.files = [str(path) for path in files]

    def __call__(self) -> tuple[dict[str, Any], list[str]]:
        self.calls += 1
        return {"answer": self.calls}, self.files


def test_worked_out_once_across_processes(tmp_path: Path) -> None:
    file = tmp_path / "tool"
    file.write_text("1")
    counter = Counter(file)
    assert Memo(tmp_path / "memo").get("x", ANSWER, counter) == {"answer": 1}
    assert Memo(tmp_path / "memo").get("x", ANSWER, counter) == {"answer": 1}
    assert counter.calls == 1


def test_a_changed_file_ends_it_even_in_the_same_process(tmp_path: Path) -> None:
    file = tmp_path / "tool"
    file.write_text("1")
    counter = Counter(file)
    memo = Memo(tmp_path / "memo")
    memo.get("x", ANSWER, counter)
    file.write_text("another size")
    assert memo.get("x", ANSWER, counter) == {"answer": 2}


def test_an_unwritable_directory_costs_only_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    counter = Counter(tmp_path)
    memo = Memo(blocked / "memo")
    assert memo.get("x", ANSWER, counter) == {"answer": 1}
    assert memo.get("x", ANSWER, counter) == {"answer": 1}


def test_a_fact_of_another_version_is_worked_out_again(tmp_path: Path) -> None:
    counter = Counter(tmp_path)
    Memo(tmp_path / "memo").get("x", ANSWER, counter)
    newer = {**ANSWER, "detail": is_text}
    fact = {"answer": 7, "detail": ""}
    assert Memo(tmp_path / "memo").get("x", newer, lambda: (fact, [])) == fact
