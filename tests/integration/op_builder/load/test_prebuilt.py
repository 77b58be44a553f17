"""Ops in a wheel: a binary that fits is loaded first, one that does not is ignored with the reason."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import op_builder
from op_builder import env, paths
from op_builder.cache.store import Cache, Entry
from op_builder.cpu import CPUAdamBuilder
from op_builder.errors import IncompatibleOpError
from op_builder.load.prebuilt import read_index
from op_builder.report import collect
from op_builder.report.render import print_report
from tests.support.builds import prebuilt, row_of
from tests.support.entries import edit_record
from tests.support.foreign_package import importable, load_module, write_package
from tests.support.small_ops import SmallBuilder, added, copied


@pytest.fixture
def small(built: Path, tmp_path: Path) -> SmallBuilder:
    """A copy of ``small`` with its filled cache."""
    return SmallBuilder(*copied(built, tmp_path))


@pytest.fixture
def wheel(small: SmallBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """The entry of ``small`` in an installed wheel."""
    root = tmp_path / "site-packages" / "op_builder" / "_prebuilt"
    shutil.copytree(small.cache.home / "ops", root / "ops")
    monkeypatch.setattr(paths, "prebuilt_roots", lambda _cls: [root])
    (entry,) = Cache(root, in_package=True).entries("small")
    return entry


def rewrite(entry: Entry, edit: Callable[[dict[str, Any]], None]) -> None:
    edit_record(entry.directory / "manifest.json", edit)


def rejection(builder: SmallBuilder) -> str:
    """Why the prebuilt op does not fit; empty if it does."""
    found = prebuilt(builder)
    assert found is not None
    return found.rejection.reason if found.rejection is not None else ""


def empty(cache: Cache) -> None:
    shutil.rmtree(cache.home / "ops")


def test_a_prebuilt_op_that_fits_is_loaded_first(small: SmallBuilder, wheel: Entry) -> None:
    empty(small.cache)
    with env.scope(ACCEL_JIT="0"):
        assert added(small.load()) == 1.0
    row = row_of(small)
    assert (row.installed, row.cached, row.compatible) == (True, False, True)
    assert small.cache.entries() == []
    assert wheel.is_intact()


@pytest.mark.usefixtures("new_process")
def test_jit_load_ignores_the_prebuilt_op(small: SmallBuilder, wheel: Entry) -> None:  # noqa: ARG001
    empty(small.cache)
    with env.scope(ACCEL_JIT="0"), pytest.raises(IncompatibleOpError, match="neither prebuilt"):
        small.jit_load()
    assert small.jit_mode


@pytest.mark.parametrize(
    ("members", "key_parts", "reason"),
    [
        ({}, {"platform": "linux riscv128"}, f"It was built for linux riscv128, this is linux {platform.machine()}"),
        ({"kind": []}, {}, "Its manifest cannot be read"),
        ({}, {"c++ flags": "{"}, "Its manifest cannot be read"),
        ({}, {"c++ flags": "[1]"}, "Its manifest cannot be read"),
        ({"sha256": "0" * 64}, {}, "Its binary does not match its manifest"),
        ({"needs": {"GLIBC": "9.1"}}, {}, "It needs glibc 9.1, this is"),
        ({}, {"source 1 more.cpp": "0" * 64}, "It was built from other files or flags: source 1 more.cpp"),
    ],
)
@pytest.mark.usefixtures("new_process")
def test_a_prebuilt_op_that_does_not_fit_is_ignored_with_the_reason(
    small: SmallBuilder,
    wheel: Entry,
    caplog: pytest.LogCaptureFixture,
    members: dict[str, Any],
    key_parts: dict[str, str],
    reason: str,
) -> None:
    rewrite(wheel, lambda manifest: manifest.update(members, key_parts={**manifest["key_parts"], **key_parts}))
    row = row_of(small)
    assert not row.installed
    assert row.compatible
    assert reason in row.reason
    assert added(small.load()) == 1.0
    assert f"The prebuilt 'small' is ignored. {reason}" in caplog.text
    assert wheel.directory.is_dir(), "an installed package is not rearranged"


def test_the_report_knows_what_the_linker_would_reject(small: SmallBuilder, wheel: Entry) -> None:
    assert row_of(small).installed, "the manifest matches this machine"
    rewrite(wheel, lambda manifest: manifest.update(needs={"GLIBCXX": "3.4.99"}))
    row = row_of(small)
    assert not row.installed
    assert "It needs GLIBCXX_3.4.99, which the installed C++ library lacks" in row.reason


def test_an_op_that_is_loaded_already_is_found_before_the_prebuilt_one(
    small: SmallBuilder, wheel: Entry, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = small.jit_load()
    rewrite(wheel, lambda manifest: manifest.update(sha256="0" * 64))
    assert small.load() is loaded
    assert "is ignored" not in caplog.text, "the wheel is not read"


def test_a_binary_may_be_in_the_package_of_the_class_or_of_a_base_class(tmp_path: Path) -> None:
    own = Path(op_builder.__file__).parent / "_prebuilt"
    assert paths.prebuilt_roots(type(CPUAdamBuilder())) == [own]
    code = "from op_builder.cpu import CPUAdamBuilder\nclass OtherBuilder(CPUAdamBuilder): ...\n"
    write_package(tmp_path, "other_ops", {"deep/__init__.py": code})
    with importable(tmp_path, "other_ops"):
        roots = paths.prebuilt_roots(load_module("other_ops.deep").OtherBuilder)
    assert roots == [tmp_path / "other_ops" / "_prebuilt", own]


def test_a_header_of_this_project_may_change_under_an_op_of_another_package(small: SmallBuilder, wheel: Entry) -> None:
    def age(manifest: dict[str, Any]) -> None:
        (header,) = [header for header in manifest["headers"] if header["path"].endswith("torch_c/library.h")]
        header["sha256"], header["status"] = "0" * 64, []

    rewrite(wheel, age)
    assert rejection(small) == ""


@pytest.mark.parametrize(("flag", "fits"), [("-O1", True), ("-march=armv9", False)])
def test_another_versions_binary_may_have_other_flags_but_not_for_another_cpu(
    small: SmallBuilder, wheel: Entry, flag: str, fits: bool
) -> None:
    rewrite(wheel, lambda manifest: manifest["key_parts"].update({"c++ flags": json.dumps([flag])}))
    assert rejection(small)
    rewrite(wheel, lambda manifest: manifest.update(accel_ops="0.0.7"))
    assert (rejection(small) == "") is fits


@pytest.mark.usefixtures("wheel")
def test_edited_files_of_the_op_are_noticed(small: SmallBuilder, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "op_builder"  # with the sources and the binary
    shutil.copytree(small.directory, package / "op")
    packaged = SmallBuilder(package / "op", small.cache)
    assert rejection(packaged) == ""
    header = packaged.directory / "include" / "nested.h"
    before = header.read_text()
    header.write_text("#define NESTED 5.0f\n")
    assert rejection(packaged) == "It was built from other files or flags: header nested.h."
    header.write_text(before)
    assert rejection(packaged) == "", "times do not count"
    header.unlink()
    assert rejection(packaged) == "", "a wheel may omit headers"
    header.write_text(before)
    source, other = packaged.directory / "small.cpp", packaged.directory / "other.cpp"
    other.write_text(source.read_text() + "// edited\n")
    os.utime(other, ns=(0, 0))
    other.replace(source)
    assert rejection(packaged) == "It was built from other files or flags: source 0 small.cpp."


@pytest.mark.parametrize("content", ["[]", '{"format": 1}', "\0"])
def test_the_report_shows_an_unreadable_index(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "some_package" / "_prebuilt"
    root.mkdir(parents=True)
    assert read_index(root) is None
    (root / "wheel.json").write_text(content)
    with pytest.raises(ValueError, match="its checksum does not match"):
        read_index(root)
    monkeypatch.setattr(
        collect, "all_specs", lambda _package: [CPUAdamBuilder().spec()._replace(prebuilt_roots=(root,))]
    )
    data = collect.report()
    (wheel,) = data["wheels"]
    assert wheel["reason"].startswith("wheel.json cannot be read: ")
    text = io.StringIO()
    print_report(data, Console(file=text, width=200))
    assert f"some_package  {wheel['reason']}" in re.sub(" {2,}", "  ", text.getvalue())
