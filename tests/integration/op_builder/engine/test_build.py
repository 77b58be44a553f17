"""Building for real: compile, try, publish, load; what a second load costs; what an edit does."""

from __future__ import annotations

import collections
import hashlib
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from op_builder import env
from op_builder.cache.key import PlanKey
from op_builder.cache.store import MANIFEST
from op_builder.errors import AccelError, CompileError, IncompatibleOpError, LoadError
from op_builder.report.machine import environment
from tests.support.builds import cached_or_built, compile_op, find_cached
from tests.support.compilers import needs_gxx, program
from tests.support.small_ops import SmallBuilder, added

TOOLS = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def no_tools(tmp_path: Path) -> Iterator[None]:
    """A PATH without a compiler."""
    with env.scope(PATH=str(tmp_path), CXX=None, CUDA_HOME=None, CUDA_PATH=None):
        yield


def nested(small: SmallBuilder, value: str) -> None:
    """Save another content of the header that the source's header includes."""
    (small.directory / "include" / "nested.h").write_text(f"#define NESTED {value}\n")


def is_hit(builder: SmallBuilder) -> bool:
    return find_cached(builder) is not None


def test_op_is_built_loaded_and_works(small: SmallBuilder, caplog: pytest.LogCaptureFixture) -> None:
    with (small.directory / "small.cpp").open("a") as source:
        source.write("#include <torch/csrc/stable/c/shim.h>\n")
    with caplog.at_level("INFO", logger="op_builder"):
        assert added(small.load(verbose=True)) == 1.0
    assert "Building 'small' (1 file)." in caplog.text
    assert "[4/4] link small.so" in caplog.text
    (entry,) = small.cache.entries("small")
    assert entry.manifest.kind == "accel"
    assert "libtorch_cpu" in entry.manifest.check
    ours = {f"torch_c/{name}.h" for name in ("boxed", "errors", "functions", "library", "tensor")}
    of_torch = {header.path for header in entry.manifest.headers if header.root == "installed_torch"}
    assert "torch/csrc/stable/c/shim.h" in of_torch
    assert {header.path for header in entry.manifest.headers} - of_torch == {"amount.h", "nested.h", *ours}
    assert list((small.cache.home / "staging").iterdir()) == []


def test_the_binary_needs_torchs_libraries_and_names_no_directory(small: SmallBuilder) -> None:
    artifact = cached_or_built(small).artifact
    listed = subprocess.run(["readelf", "-d", str(artifact)], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"NEEDED.*\[(.*)\]", listed)[:2] == ["libtorch_cpu.so", "libc10.so"]
    assert "PATH" not in listed
    for directory in (small.directory, Path(torch.__file__).parent):
        assert str(directory).encode() not in artifact.read_bytes()


@needs_gxx
@pytest.mark.parametrize("by_compiler", [False, True])
def test_a_linker_that_must_find_all_symbols_meets_torchs_own_libraries(small: SmallBuilder, by_compiler: bool) -> None:
    if not by_compiler:
        small.link.append("-Wl,-z,defs")
    with env.scope(CXX="g++ -Wl,--no-undefined" if by_compiler else "g++"):
        assert added(small.load()) == 1.0


def test_an_edit_runs_in_the_same_process_and_old_code_stays_cached(small: SmallBuilder) -> None:
    one = small.load()
    nested(small, "41.0f")
    other = small.load()
    assert (added(one), added(other)) == (1.0, 42.0)
    nested(small, "0.0f")
    assert small.load() is one
    assert len(small.cache.entries()) == 2


# What is missing ----------------------------------------------------------------------------


def test_jit_forbidden_says_what_it_would_have_needed_and_what_changed(small: SmallBuilder) -> None:
    with env.scope(ACCEL_JIT="0"), pytest.raises(IncompatibleOpError, match="ACCEL_JIT=0") as caught:
        small.load()
    assert str(small.cache.root) in str(caught.value)
    assert "Remedy" in str(caught.value)
    small.load()
    nested(small, "5.0f")
    with env.scope(ACCEL_JIT="0"):
        assert not small.is_compatible()
        with pytest.raises(IncompatibleOpError) as caught:
            small.load()
    assert "small.cpp with " in str(caught.value)
    assert "differs in: nested.h changed" in str(caught.value)


@needs_gxx
def test_no_compiler_is_an_incompatible_op_with_the_remedy(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    assert not small.is_compatible()
    assert "apt-get install g++" in str(small.error_log)
    assert "No C++ compiler" in environment()["toolchains"]["c++"]["error"]
    with pytest.raises(IncompatibleOpError, match=r"No C\+\+ compiler"):
        small.load()


def test_no_ninja_is_an_incompatible_op_with_the_remedy(
    small: SmallBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gxx = shutil.which("g++")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setitem(sys.modules, "ninja", None)
    with env.scope(PATH=str(tmp_path), CXX=gxx), pytest.raises(IncompatibleOpError, match="No ninja") as caught:
        small.load()
    assert "pip install ninja" in caught.value.remedy


def test_a_wrong_source_is_named(small: SmallBuilder) -> None:
    small.files.append("absent.cpp")
    with pytest.raises(AccelError, match=r"absent\.cpp"):
        small.load()
    assert not small.is_compatible()
    small.files[-1] = "kernel.f90"
    (small.directory / "kernel.f90").write_text("")
    with pytest.raises(AccelError, match=r"\.f90"):
        small.plan()


# Changes during a build ---------------------------------------------------------------------


def compiler_that(directory: Path, does_first: str) -> str:
    """A g++ that does something when its first compile ends."""
    once = f'[ -e "{directory}/done" ] || {{ touch "{directory}/done"; {does_first}; }}'
    body = f'case "$*" in *.o.d*) ;; *) exec g++ "$@" ;; esac\ng++ "$@" || exit\n{once}'
    return str(program(directory / "g++-and-more", body))


@needs_gxx
@pytest.mark.parametrize("moved", [False, True])
def test_a_header_saved_or_moved_here_during_the_build_is_noticed(
    small: SmallBuilder, tmp_path: Path, moved: bool
) -> None:
    header, other = small.directory / "include" / "nested.h", small.directory / "other.h"
    other.write_text("#define NESTED 6.0f\n")
    does = f'touch -d @1 "{other}"; mv "{other}" "{header}"' if moved else f'cat "{other}" > "{header}"'
    with env.scope(CXX=compiler_that(tmp_path, does)):
        assert added(small.load()) == 7.0


# Entries of other compilers -----------------------------------------------------------------


@needs_gxx
@pytest.mark.usefixtures("new_process")
def test_a_bundle_needs_no_system_headers_where_there_is_no_compiler(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    with env.scope(PATH=TOOLS):
        compile_op(small)
    (entry,) = small.cache.entries()
    # As if it came from a machine that has them elsewhere.
    system = entry.manifest.system_headers
    elsewhere = tuple(path.replace("/usr/include/", "/nowhere/include/") for path in system.paths)
    foreign = entry.manifest._replace(system_headers=system._replace(paths=elsewhere))
    (entry.directory / MANIFEST).write_text(foreign.to_json())
    entry.directory.rename(entry.directory.with_name(foreign.key.digest))
    with env.scope(ACCEL_JIT="0"):
        assert is_hit(small)
    with env.scope(PATH=TOOLS):
        assert not is_hit(small)


@needs_gxx
@pytest.mark.usefixtures("new_process")
def test_without_a_compiler_an_entry_that_does_not_open_does_not_hide_the_next(
    small: SmallBuilder,
    no_tools: None,  # noqa: ARG001
) -> None:
    with env.scope(PATH=TOOLS):
        fitting = compile_op(small).manifest
    numbers = map(str, itertools.count())
    parts = ({**fitting.key_parts, "c++ compiler": number} for number in numbers)
    first = next(each for each in parts if PlanKey(each).digest < fitting.key.plan.digest)
    content = b"\x7fELF of a newer C++ library"
    newer = fitting._replace(
        key_parts=first,
        needs={"GLIBCXX": "3.4.99"},
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    staged = small.cache.home / "staging" / "newer"
    staged.mkdir()
    (staged / newer.artifact).write_bytes(content)
    small.cache.publish(staged, newer)
    assert small.is_compatible()
    assert added(small.load()) == 1.0
    (entry,) = (each for each in small.cache.entries() if each.manifest.needs != newer.needs)
    shutil.rmtree(entry.directory)
    assert not small.is_compatible()
    with pytest.raises(IncompatibleOpError, match="compiler") as caught:
        small.load()
    assert isinstance(caught.value.__cause__, LoadError)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
def test_headers_of_gccs_library_count_by_content_where_clang_reads_them(small: SmallBuilder) -> None:
    with env.scope(CXX="clang++"):
        small.jit_load()
    (entry,) = small.cache.entries()
    of_library = {name for name in entry.manifest.system_headers.paths if "/c++/" in name}
    assert any(name.endswith("/cstdint") for name in of_library)
    assert not any("/clang/" in name for name in entry.manifest.system_headers.paths), "clang's version covers these"


# Compilers that the machine cannot run together ------------------------------------------------

FILES = 5

# A compile while another one runs fails; one that runs alone takes a moment and is noted.
ALONE = """case "$*" in *.o.d*) ;; *) exec g++ "$@" ;; esac
if mkdir {directory}/running 2>/dev/null; then
  sleep 0.3; g++ "$@"; code=$?
  echo "${{@##*/}}" >>{directory}/compiled
  rmdir {directory}/running
  exit $code
fi
touch killed.o.tmp
printf '\\033[01;31mg++: fatal error: \\033[mcannot execute cc1plus: vfork: Resource temporarily unavailable\\n' >&2
exit 1
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
    with env.scope(CXX=str(compiler), ACCEL_MAX_JOBS="8", CLICOLOR_FORCE="1"):
        assert cached_or_built(of_many(small)).is_intact(), "what a killed compiler left is no output"
    compiled = collections.Counter(re.findall(r"(\w+)\.o\.as\.d", (tmp_path / "compiled").read_text()))
    assert len(compiled) == FILES
    assert set(compiled.values()) == {1}, "what was compiled is not compiled again"
    resumed = [int(found) for found in re.findall(r"resuming with (\d+) at a time", caplog.text)]
    assert resumed == [2, 1]
    causes = re.findall(r"together \((.*)\); resuming", caplog.text)
    assert causes == ["g++: fatal error: cannot execute cc1plus: vfork: Resource temporarily unavailable"] * 2


@needs_gxx
def test_one_compiler_that_is_too_large_is_an_error(small: SmallBuilder, tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = program(tmp_path / "g++", f'case "$*" in *part1.o*) echo >>{log}; kill -9 $$ ;; esac\nexec g++ "$@"')
    with env.scope(CXX=str(compiler), ACCEL_MAX_JOBS="8"), pytest.raises(CompileError, match="signal 9") as caught:
        cached_or_built(of_many(small))
    assert "ACCEL_MAX_JOBS=1" in caught.value.remedy
    assert len(log.read_text()) <= 3, "one that runs alone is not tried again"
