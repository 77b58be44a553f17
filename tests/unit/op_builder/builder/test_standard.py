from __future__ import annotations

import logging
from pathlib import Path

import pytest

from op_builder.builder.inline import GivenBuilder
from op_builder.toolchains.flags import without_older_standards


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        (["-std=c++17", "-O3"], ["-O3"]),
        (["-std=gnu++1z", "-std=c++11"], []),
        (["-std=c++20"], ["-std=c++20"]),
        (["-std=c++2b", "-DA"], ["-std=c++2b", "-DA"]),
        (["-std=c11"], ["-std=c11"]),
        (["-ansi", "-DA"], ["-DA"]),
    ],
)
def test_only_older_standards_are_removed(flags: list[str], kept: list[str]) -> None:
    assert without_older_standards("acme", "-std=c++20", flags) == kept


def test_an_older_standard_in_a_response_file_does_not_win(tmp_path: Path) -> None:
    (tmp_path / "flags.rsp").write_text("-std=c++14 -DA")
    builder = GivenBuilder("acme", {"a.cpp": "int x;"}, cxx_flags=[f"@{tmp_path / 'flags.rsp'}"])
    flags = builder.plan().cxx_flags
    assert "-DA" in flags
    assert "-std=c++14" not in flags


def test_each_removed_standard_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "op_builder"):
        for _ in range(3):
            without_older_standards("acme_once", "-std=c++20", ["-std=c++14"])
    (record,) = caplog.records
    assert record.getMessage() == (
        "Op 'acme_once' is compiled with -std=c++20 instead of -std=c++14: the installed torch requires it."
    )
