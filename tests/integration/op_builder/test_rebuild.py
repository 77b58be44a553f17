"""Builds are equal byte for byte wherever and whenever they are made, and ``verify --rebuild`` checks it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.manifest import MANIFEST
from op_builder.cache.store import Cache, Entry
from op_builder.commands.cache import main
from op_builder.engine import Binding, Recipe, build_library
from op_builder.plan import ForeignLibrary
from op_builder.system.file_contents import content_sha256
from tests.support.builds import compile_op
from tests.support.compilers import needs_gxx, shared_library
from tests.support.entries import edit_record
from tests.support.small_ops import SmallBuilder, copied

# What could bring a place or a name into the binary: file names, debug information, names of initializers.
SECOND = """
#include <cassert>
namespace { struct Named { Named(); const char* name; }; Named::Named() : name(__FILE__) {} Named named; }
const char* where(int line) { assert(line > 0); return named.name; }
"""


def compiled(directory: Path, cache: Path) -> Entry:
    """An op of two sources, with debug information and the command line of its compiler."""
    builder = SmallBuilder(directory, Cache(cache))
    builder.files.append("second.cpp")
    builder.flags = ["-g", "-frecord-gcc-switches"]
    return compile_op(builder)


@needs_gxx
def test_a_build_does_not_depend_on_places_users_times_locales_or_jobs(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here" / "op", tmp_path / "somewhere else" / "a" / "longer" / "place"
    shutil.copytree(built / "op", here)
    (here / "second.cpp").write_text(SECOND)
    shutil.copytree(here, there)
    for number, path in enumerate(sorted(there.rglob("*"))):
        os.utime(path, (10**9 + number, 10**9 + number))
    others = {"USER": "other", "LOGNAME": "other", "LC_ALL": "C.UTF-8", "LANG": "tr_TR", "TZ": "UTC-9"}
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        others[name] = str(tmp_path / name)
        (tmp_path / name).mkdir()
    with env.scope(SOURCE_DATE_EPOCH=None, MAX_JOBS="1"):
        first = compiled(here, tmp_path / "cache")
    monkeypatch.chdir(tmp_path / "HOME")
    with env.scope(**others, SOURCE_DATE_EPOCH=None, MAX_JOBS="2"):
        second = compiled(there, tmp_path / "HOME" / "other cache")
    assert second.digest == first.digest
    assert second.artifact.read_bytes() == first.artifact.read_bytes()


@needs_gxx
def test_a_build_does_not_depend_on_the_place_of_installed_packages(tmp_path: Path) -> None:
    keys = set()
    for name in ("first", "second longer"):
        prefix = tmp_path / name
        for directory in ("include/foo", "lib"):
            (prefix / directory).mkdir(parents=True)
        (prefix / "include" / "foo" / "foo.h").touch()
        library = shared_library(prefix / "lib" / "libfoo.so", 'extern "C" int foo() { return 1; }')
        foreign = ForeignLibrary("foo", "1.0", prefix / "include", library)
        text = "#include <foo/foo.h>\n#include <stdlib.h>\nint foo(); int bar() { return foo(); }\n"
        recipe = Recipe("uses_foo", Binding.C, (), {"bar.c": text}, libraries=(foreign,))
        keys.add(build_library(recipe, cache_root=prefix / "cache").key)
    assert len(keys) == 1


@pytest.fixture
def entry(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    directory, cache = copied(built, tmp_path / "copy")
    monkeypatch.setattr("op_builder.commands.rebuild.find_op", lambda *_: SmallBuilder(directory, cache).spec())
    (found,) = cache.entries()
    return found


def verify(capsys: pytest.CaptureFixture[str], entry: Entry, *, status: int) -> dict[str, Any]:
    root = entry.directory.parents[4]
    assert main(["verify", "--rebuild", "--json", "--directory", str(root)]) == status
    (found,) = json.loads(capsys.readouterr().out)["rebuilt"]
    return dict(found)


def test_rebuild_finds_an_entry_equal(capsys: pytest.CaptureFixture[str], entry: Entry) -> None:
    assert verify(capsys, entry, status=0) == {"op": "small", "key": entry.digest, "differences": [], "reason": ""}


def test_rebuild_names_what_differs(capsys: pytest.CaptureFixture[str], entry: Entry) -> None:
    content, schema = entry.artifact.read_bytes(), b"add_(Tensor(a!) x)"
    entry.artifact.write_bytes(content.replace(schema, schema.replace(b"x", b"y")))
    edit_record(entry.directory / MANIFEST, lambda record: record.update(sha256=content_sha256(str(entry.artifact))))
    (difference,) = verify(capsys, entry, status=1)["differences"]
    assert difference == f"from byte {content.index(schema) + schema.index(b'x')} of {len(content)} on"
    root = str(entry.directory.parents[4])
    assert main(["verify", "--rebuild", "--directory", root]) == 1
    assert f"small {entry.digest[:12]}: different: {difference}" in capsys.readouterr().out


def test_rebuild_skips_an_op_whose_recipe_has_changed(capsys: pytest.CaptureFixture[str], entry: Entry) -> None:
    source = entry.directory.parents[5] / "op" / "small.cpp"
    source.write_text(source.read_text() + "// edited\n")
    found = verify(capsys, entry, status=0)
    assert found["reason"].startswith("changed since it was built: source 0 ")
    assert found["differences"] == []
