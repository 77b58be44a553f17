"""A miss is explained: which part of the key differs from the nearest entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from op_builder import env
from op_builder.report.collect import explain
from tests.support.compilers import needs_gxx, program
from tests.support.small_ops import SmallBuilder, copied


def edit_header(builder: SmallBuilder) -> None:
    (builder.directory / "include" / "nested.h").write_text("#define NESTED 2.0f\n")


def edit_source(builder: SmallBuilder) -> None:
    path = builder.directory / "small.cpp"
    path.write_text(path.read_text() + "// more\n")


def add_source(builder: SmallBuilder) -> None:
    (builder.directory / "more.cpp").write_text("int more;\n")
    builder.files.append("more.cpp")


def add_flag(builder: SmallBuilder) -> None:
    builder.flags.append("-DMORE=1")


def add_source_flag(builder: SmallBuilder) -> None:
    builder.source_args = lambda _: ["-O1"]  # type: ignore[method-assign]


def remove_header(builder: SmallBuilder) -> None:
    (builder.directory / "include" / "nested.h").rename(builder.directory / "elsewhere.h")


def shadow_header(builder: SmallBuilder) -> None:
    (builder.directory / "nested.h").write_text("#define NESTED 3.0f\n")


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> SmallBuilder:
    """The built op in another place, to be changed."""
    return SmallBuilder(*copied(built, tmp_path / "copy"))


def test_a_hit_needs_no_explanation(copy: SmallBuilder) -> None:
    assert explain(copy)["miss"] is None
    assert explain(copy)["cached"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (edit_header, "nested.h changed"),
        (edit_source, "small.cpp changed"),
        (add_source, "more.cpp is new"),
        (add_flag, "c++ flags: +'-DMORE=1'"),
        (add_source_flag, "flags of small.cpp: +'-O1'"),
        (remove_header, "nested.h was removed"),
        (shadow_header, "nested.h is new"),
    ],
)
def test_the_difference_is_named(copy: SmallBuilder, change: Callable[[SmallBuilder], None], line: str) -> None:
    change(copy)
    (difference,) = explain(copy)["miss"]["differences"]
    assert difference.endswith(line)


@needs_gxx
def test_another_compiler_is_named_with_both_versions(copy: SmallBuilder, tmp_path: Path) -> None:
    answers = 'case "$1" in -dumpmachine) echo x86_64-linux-gnu;; *) echo "g++ 99.0";; esac'
    with env.scope(CXX=str(program(tmp_path / "g++-99", answers))):
        (difference,) = explain(copy)["miss"]["differences"]
    assert difference.startswith("c++ compiler: ")
    assert " -> " in difference
    assert "g++ 99.0" in difference


def test_an_empty_cache_has_no_nearest_entry(small: SmallBuilder) -> None:
    assert explain(small)["miss"] == {"nearest": None, "differences": []}
