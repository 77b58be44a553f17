"""A miss is explained: which part of the key differs from the nearest entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from op_builder import env
from op_builder.builder.recipe import make_plan
from op_builder.cache.compare import _header_line
from op_builder.cache.headers import Header, Roots
from op_builder.cpu import CPUAdamBuilder
from op_builder.report.collect import explain
from tests.support.small_ops import SmallBuilder


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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an op and the cache it was built into."""
    from op_builder.cache.store import Cache
    from tests.support.small_ops import make_small

    base = tmp_path_factory.mktemp("built")
    make_small(base / "op", Cache(base / "cache")).load()
    return base


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> SmallBuilder:
    """The same op at another place, to be changed; the cache is the built one's."""
    import shutil

    from op_builder.cache.store import Cache

    shutil.copytree(built / "op", tmp_path / "op")
    return SmallBuilder(tmp_path / "op", Cache(built / "cache"))


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
        (remove_header, "nested.h is not there any more"),
        (shadow_header, "nested.h now comes before nested.h"),
    ],
)
def test_the_difference_is_named(copy: SmallBuilder, change: Callable[[SmallBuilder], None], line: str) -> None:
    change(copy)
    (difference,) = explain(copy)["miss"]["differences"]
    assert difference.endswith(line)


def test_another_compiler_is_named_with_both_versions(copy: SmallBuilder, tmp_path: Path) -> None:
    fake = tmp_path / "g++-99"
    fake.write_text('#!/bin/sh\ncase "$1" in -dumpmachine) echo x86_64-linux-gnu;; *) echo "g++ 99.0";; esac\n')
    fake.chmod(0o755)
    with env.scope(CXX=str(fake)):
        (difference,) = explain(copy)["miss"]["differences"]
    assert difference.startswith("c++ compiler: ")
    assert " -> " in difference
    assert "g++ 99.0" in difference


def test_an_empty_cache_has_no_nearest_entry(small: SmallBuilder) -> None:
    assert explain(small)["miss"] == {"nearest": None, "differences": []}


def test_a_header_of_this_project_is_named_from_its_top() -> None:
    roots = Roots.of(make_plan(CPUAdamBuilder()))
    named = {"native": "csrc/kernels/cpu/codecs_inl.h", "include0": "kernels/cpu/codecs_inl.h"}
    beside = next(root for root, path in roots.directories.items() if path.endswith("/csrc/kernels/cpu"))
    for root, path in {**named, beside: "codecs_inl.h"}.items():
        header = Header(root, path, sha256="of another text", status=())
        assert _header_line(header, roots) == "csrc/kernels/cpu/codecs_inl.h changed"
