"""Compilers that the machine cannot run together: the build resumes with fewer, down to one."""

from __future__ import annotations

import collections
import re
import sys
from pathlib import Path

import pytest

from op_builder import env
from op_builder.errors import CompileError
from op_builder.load import resolver
from tests.support.compilers import needs_gxx, program
from tests.support.small_ops import SmallBuilder

FILES = 5

# A compile while another one runs fails; one that runs alone takes a moment and is noted.
ALONE = """case "$*" in *-MD*) ;; *) exec g++ "$@" ;; esac
if mkdir {directory}/running 2>/dev/null; then
  sleep 0.3; g++ "$@"; code=$?
  echo "${{@##*/}}" >>{directory}/compiled
  rmdir {directory}/running
  exit $code
fi
echo "g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable" >&2; exit 1
"""


def of_many(small: SmallBuilder) -> SmallBuilder:
    for number in range(1, FILES):
        (small.directory / f"part{number}.cpp").write_text(f"int part{number}() {{ return {number}; }}\n")
        small.files.append(f"part{number}.cpp")
    return small


@needs_gxx
def test_a_build_resumes_with_half_the_jobs(
    small: SmallBuilder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = program(tmp_path / "alone-g++", ALONE.format(directory=tmp_path))
    with env.scope(CXX=str(compiler), ACCEL_MAX_JOBS="8"):
        assert resolver.cached_or_built(of_many(small)).is_intact()
    compiled = collections.Counter(re.findall(r"(\w+)\.o\.as\.d", (tmp_path / "compiled").read_text()))
    assert len(compiled) == FILES
    assert set(compiled.values()) == {1}, "what was compiled is not compiled again"
    resumed = [int(found) for found in re.findall(r"resuming with (\d+) at a time", caplog.text)]
    assert resumed == [2, 1]


@needs_gxx
def test_one_compiler_that_is_too_large_is_an_error(small: SmallBuilder, tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = program(tmp_path / "g++", f'case "$*" in *part1.o*) echo >>{log}; kill -9 $$ ;; esac\nexec g++ "$@"')
    with env.scope(CXX=str(compiler), ACCEL_MAX_JOBS="8"), pytest.raises(CompileError, match="signal 9") as caught:
        resolver.cached_or_built(of_many(small))
    assert "ACCEL_MAX_JOBS=1" in caught.value.remedy
    assert len(log.read_text()) <= 3, "one that runs alone is not tried again"


@needs_gxx
def test_the_memory_of_the_largest_compiler_is_recorded(small: SmallBuilder, tmp_path: Path) -> None:
    hold = f"{sys.executable} -S -c 'b\"x\" * (3 << 29)'"
    compiler = program(tmp_path / "large-g++", f'case "$*" in *-MD*small.o*) {hold} ;; esac\nexec g++ "$@"')
    with env.scope(CXX=str(compiler)):
        entry = resolver.cached_or_built(of_many(small))
        assert 3 << 29 <= entry.manifest.peak_bytes < 3 << 30
        (small.directory / "part1.cpp").write_text("int part1() { return 0; }\n")
        edited = resolver.cached_or_built(small)
    assert edited.manifest.peak_bytes == entry.manifest.peak_bytes, "the largest file was not compiled again"
