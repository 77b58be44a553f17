"""Builds are equal byte for byte wherever and whenever they are made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.store import Cache, Entry
from tests.support.builds import compile_op
from tests.support.compilers import needs_gxx
from tests.support.small_ops import SmallBuilder

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
