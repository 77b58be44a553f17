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


def test_an_answer_is_worked_out_once_until_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "tool"
    file.write_text("1")
    counter, memo = Counter(file), Memo(tmp_path / "memo")
    for each in (memo, memo, Memo(tmp_path / "memo")):  # the last one as in another process
        assert each.get("x", ANSWER, counter) == {"answer": 1}
    file.write_text("another size")
    assert memo.get("x", ANSWER, counter) == {"answer": 2}


def test_an_unwritable_directory_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    counter, memo = Counter(tmp_path), Memo(tmp_path / "file" / "memo")
    for _ in range(2):
        assert memo.get("x", ANSWER, counter) == {"answer": 1}


def test_a_fact_of_another_version_is_worked_out_again(tmp_path: Path) -> None:
    counter = Counter(tmp_path)
    Memo(tmp_path / "memo").get("x", ANSWER, counter)
    newer = {**ANSWER, "detail": is_text}
    fact = {"answer": 7, "detail": ""}
    assert Memo(tmp_path / "memo").get("x", newer, lambda: (fact, [])) == fact
