"""Building for real: compile, try, publish, load; what a second load costs; what an edit does."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder import env
from op_builder.cache.fingerprint import saved_since
from op_builder.cache.headers import SystemHeaders
from op_builder.cache.store import Cache, Manifest
from op_builder.errors import AccelError, CompileError, IncompatibleOpError, LoadError
from op_builder.load import resolver
from tests.support.small_ops import STABLE_SOURCE, SmallBuilder, make_small


def added(op: Any) -> float:
    x = torch.zeros(3)
    op.add_(x)
    assert x[0] == x[1] == x[2]
    return x[0].item()


@pytest.fixture
def no_tools(tmp_path: Path) -> Iterator[None]:
    """A PATH without a compiler."""
    with env.scope(PATH=str(tmp_path), CXX=None, CUDA_HOME=None, CUDA_PATH=None):
        yield


def test_op_is_built_loaded_and_works(small: SmallBuilder) -> None:
    assert added(small.load()) == 1.0
    (entry,) = small.cache.entries("small")
    assert entry.manifest.kind == "accel"
    assert "libtorch_cpu" in entry.manifest.check
    ours = {"bindings/stable_library.h", "torch_c/library.h", "torch_c/functions.h"}
    of_torch = {header.path for header in entry.manifest.headers if header.root == "torch"}
    assert "torch/csrc/stable/tensor.h" in of_torch
    assert {header.path for header in entry.manifest.headers} - of_torch == {"amount.h", "nested.h", *ours}
    assert list((small.cache.root / "staging").iterdir()) == []


def test_the_binary_needs_torchs_libraries_though_it_is_linked_with_stand_ins(small: SmallBuilder) -> None:
    small.load()
    (entry,) = small.cache.entries("small")
    listed = subprocess.run(["readelf", "-d", str(entry.artifact)], capture_output=True, text=True, check=True)
    needed = re.findall(r"NEEDED.*\[(.*)\]", listed.stdout)
    assert needed[:2] == ["libtorch_cpu.so", "libc10.so"]
    assert not any("PATH" in line for line in listed.stdout.splitlines())


@pytest.mark.parametrize("by_compiler", [False, True])
@pytest.mark.parametrize("flag", ["-Wl,-z,defs", "-Wl,--no-undefined", "-Wl,--unresolved-symbols=report-all"])
def test_a_linker_that_is_to_find_all_symbols_meets_torchs_own_libraries(
    small: SmallBuilder, flag: str, by_compiler: bool
) -> None:
    if not by_compiler:
        small.link.append(flag)
    with env.scope(CXX=f"g++ {flag}" if by_compiler else "g++"):
        assert added(small.load()) == 1.0


def test_a_symbol_that_is_nowhere_is_told_by_a_linker_that_is_to_find_all(small: SmallBuilder) -> None:
    small.link.append("-Wl,-z,defs")
    (small.directory / "small.cpp").write_text(STABLE_SOURCE + "int nowhere(); int use_nowhere() { return nowhere(); }")
    with pytest.raises(CompileError, match="nowhere"):
        small.load()


def test_second_load_is_the_same_object_and_compiles_nothing(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    with env.scope(PATH="/usr/local/bin:/usr/bin:/bin"):
        first = small.load()
    again = SmallBuilder(small.directory, small.cache)
    assert again.load() is first


def test_an_edit_runs_in_the_same_process_and_old_code_stays_cached(small: SmallBuilder) -> None:
    header = small.directory / "include" / "nested.h"
    one = small.load()
    header.write_text("#define NESTED 41.0f\n")
    other = small.load()
    assert (added(one), added(other)) == (1.0, 42.0)
    header.write_text("#define NESTED 0.0f\n")
    assert small.load() is one
    assert len(small.cache.entries()) == 2


def test_what_is_loaded_stays_loaded_when_the_cache_is_cleared(small: SmallBuilder) -> None:
    first = small.load()
    shutil.rmtree(small.cache.root)
    with env.scope(ACCEL_JIT="0"):
        assert small.load() is first


def test_a_copied_tree_and_another_cache_user_hit(small: SmallBuilder, tmp_path: Path) -> None:
    small.load()
    shutil.copytree(small.directory, tmp_path / "copy")
    with env.scope(ACCEL_JIT="0"):
        assert added(SmallBuilder(tmp_path / "copy", small.cache).load()) == 1.0


def test_no_absolute_path_enters_the_binary(small: SmallBuilder) -> None:
    small.load()
    (entry,) = small.cache.entries()
    content = entry.artifact.read_bytes()
    assert str(small.directory).encode() not in content
    assert str(Path(torch.__file__).parent).encode() not in content
    assert b"RUNPATH" not in content


def test_two_builds_of_one_op_make_the_same_bits(small: SmallBuilder, tmp_path: Path) -> None:
    small.load()
    shutil.copytree(small.directory, tmp_path / "copy")
    other = SmallBuilder(tmp_path / "copy", Cache(tmp_path / "other cache"))
    resolver.compile_now(resolver.Request.of(other))
    (one,), (two,) = small.cache.entries(), other.cache.entries()
    assert one.manifest.sha256 == two.manifest.sha256


def test_sources_of_the_same_base_name_do_not_collide(small: SmallBuilder) -> None:
    for name in ("a", "b"):
        (small.directory / name).mkdir()
        (small.directory / name / "part.cpp").write_text(f"int part_{name}() {{ return 1; }}\n")
        small.files.append(f"{name}/part.cpp")
    assert added(small.load()) == 1.0


def test_a_directory_with_spaces_and_dollars_builds(tmp_path: Path, cache: Cache) -> None:
    assert added(make_small(tmp_path / "my $ops: new", cache).load()) == 1.0


def test_read_only_use_without_compiler_and_ninja_hits(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    with env.scope(PATH="/usr/local/bin:/usr/bin:/bin"):
        small.load()
    fresh = SmallBuilder(small.directory, Cache(small.cache.root))
    shutil.rmtree(small.cache.root / "memo")
    request = resolver.Request.of(fresh)
    assert request.toolset is None
    assert request.find_cached() is not None


def test_jit_forbidden_says_what_it_would_have_needed(small: SmallBuilder) -> None:
    with env.scope(ACCEL_JIT="0"), pytest.raises(IncompatibleOpError, match="ACCEL_JIT=0") as caught:
        small.load()
    assert str(small.cache.root) in str(caught.value)
    assert "Remedy" in str(caught.value)
    with env.scope(ACCEL_JIT="0"):
        assert not small.is_compatible()


def test_strict_mode_says_what_changed_since_the_nearest_build(small: SmallBuilder) -> None:
    small.load()
    (small.directory / "include" / "nested.h").write_text("#define NESTED 5.0f\n")
    with env.scope(ACCEL_JIT="0"), pytest.raises(IncompatibleOpError) as caught:
        small.load()
    assert "small.cpp with " in str(caught.value)
    assert "differs in: nested.h changed" in str(caught.value)


def test_no_compiler_is_an_incompatible_op_with_the_remedy(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    assert not small.is_compatible()
    assert "apt-get install g++" in str(small.error_log)
    with pytest.raises(IncompatibleOpError, match=r"No C\+\+ compiler"):
        small.load()


def test_no_ninja_is_an_incompatible_op_with_the_remedy(
    small: SmallBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gxx = shutil.which("g++")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setitem(__import__("sys").modules, "ninja", None)
    with env.scope(PATH=str(tmp_path), CXX=gxx), pytest.raises(IncompatibleOpError, match="No ninja") as caught:
        small.load()
    assert "pip install ninja" in caught.value.remedy


def test_ninja_off_path_is_found_in_its_package(small: SmallBuilder, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("g++", "as", "ld", "nm"):
        (tools / name).symlink_to(str(shutil.which(name)))
    with env.scope(PATH=str(tools)):
        assert added(small.load()) == 1.0


def test_compile_error_shows_the_first_diagnostic_the_command_and_the_log(small: SmallBuilder) -> None:
    (small.directory / "include" / "nested.h").write_text("#define NESTED undeclared_name\n")
    with pytest.raises(CompileError) as caught:
        small.load()
    error = caught.value
    assert "undeclared_name" in error.diagnostic
    assert "small.cpp" in error.diagnostic or "nested.h" in error.diagnostic
    assert "g++" in error.command
    assert "undeclared_name" in Path(error.log_path).read_text()
    assert len(str(error).splitlines()) <= 8
    assert small.cache.entries() == []
    (small.directory / "include" / "nested.h").write_text("#define NESTED 0.0f\n")
    assert added(small.load()) == 1.0


def test_undefined_symbol_is_found_before_anything_is_published(small: SmallBuilder) -> None:
    source = STABLE_SOURCE.replace("static void add_", "float elsewhere();\nstatic void add_")
    (small.directory / "small.cpp").write_text(source.replace("+= AMOUNT", "+= AMOUNT + elsewhere()"))
    with pytest.raises(LoadError, match="elsewhere") as caught:
        small.load()
    assert "Remedy" in str(caught.value)
    assert small.cache.entries() == []


def test_undefined_symbol_of_a_library_that_registers_itself_is_named(small: SmallBuilder) -> None:
    source = """
#include <torch/csrc/stable/library.h>
int elsewhere();
static void call() { elsewhere(); }
STABLE_TORCH_LIBRARY(undefined_symbol_of_a_library, m) { m.def("call() -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(undefined_symbol_of_a_library, CompositeExplicitAutograd, m) {
  m.impl("call", TORCH_BOX(&call));
}
"""
    (small.directory / "small.cpp").write_text(source)
    with pytest.raises(LoadError, match="undefined symbol: _Z9elsewherev") as caught:
        small.load()
    assert "extra_ldflags" in caught.value.remedy


def test_a_binary_that_crashes_while_loading_takes_nothing_with_it(small: SmallBuilder) -> None:
    crash = "#include <csignal>\n__attribute__((constructor)) static void crash() { std::raise(SIGSEGV); }\n"
    (small.directory / "small.cpp").write_text(STABLE_SOURCE + crash)
    with pytest.raises(LoadError, match="SIGSEGV"):
        small.load()
    assert small.cache.entries() == []


def test_torch_cxx_symbols_in_a_stable_op_are_refused(small: SmallBuilder) -> None:
    sneaked = "\nnamespace at { int get_num_threads(); }\nint sneaked() { return at::get_num_threads(); }\n"
    (small.directory / "small.cpp").write_text(STABLE_SOURCE + sneaked)
    with pytest.raises(LoadError, match="stable C ABI"):
        small.load()


def test_source_that_does_not_exist_is_named(small: SmallBuilder) -> None:
    small.files.append("absent.cpp")
    with pytest.raises(AccelError, match=r"absent\.cpp"):
        small.load()
    assert not small.is_compatible()


def test_unknown_suffix_is_named(small: SmallBuilder) -> None:
    (small.directory / "kernel.f90").write_text("")
    small.files.append("kernel.f90")
    with pytest.raises(AccelError, match=r"\.f90"):
        small.plan()


def test_a_source_saved_during_the_build_is_built_again(small: SmallBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    from op_builder.engine import build as engine

    run_ninja, calls = engine.run_ninja, []

    def save_while_compiling(*arguments: Any, **options: Any) -> bool:
        result = run_ninja(*arguments, **options)
        if not calls:
            (small.directory / "include" / "nested.h").write_text("#define NESTED 6.0f\n")
        calls.append(1)
        return result

    monkeypatch.setattr(engine, "run_ninja", save_while_compiling)
    assert added(small.load()) == 7.0
    assert len(calls) == 2


def test_steps_are_logged(small: SmallBuilder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="op_builder"):
        small.load(verbose=True)
    assert "Building 'small'" in caplog.text
    assert "[4/4] link small.so" in caplog.text


def test_a_build_out_of_time_is_stopped_with_an_error(small: SmallBuilder) -> None:
    # Two to the power of 40 steps of constant evaluation: no compiler is done with that in a second.
    small.flags += ["-fconstexpr-ops-limit=9223372036854775807", "-fconstexpr-loop-limit=2147483647"]
    loops = "for (int i = 0; i < 1 << 20; ++i) for (int j = 0; j < 1 << 20; ++j) n += i ^ j;"
    slow = f"constexpr long count() {{ long n = 0; {loops} return n; }}\nstatic_assert(count() != 0);\n"
    (small.directory / "small.cpp").write_text(STABLE_SOURCE + slow)
    with env.scope(ACCEL_COMPILE_TIMEOUT_S="1"), pytest.raises(AccelError, match="within 1 s"):
        small.load()
    assert list((small.cache.root / "staging").iterdir()) == []


def is_hit(builder: SmallBuilder) -> bool:
    return resolver.Request.of(builder).find_cached() is not None


def test_a_new_file_that_the_compiler_does_not_read_costs_one_build_at_most(small: SmallBuilder) -> None:
    source = small.directory / "small.cpp"
    source.write_text(source.read_text().replace('"amount.h"', "<amount.h>"))
    small.load()
    # Angle brackets do not look beside the source; the key cannot know which brackets were used.
    (small.directory / "amount.h").write_text("#error not me\n")
    assert added(small.load()) == 1.0
    assert is_hit(small)


def test_an_own_directory_named_like_the_compilers_is_the_ops_own(small: SmallBuilder) -> None:
    own = small.directory / "include" / "c++" / "1"
    own.mkdir(parents=True)
    (own / "deep.h").write_text("#define DEEP 1\n")
    header = small.directory / "include" / "nested.h"
    header.write_text('#include "c++/1/deep.h"\n#define NESTED (DEEP * 2.0f)\n')
    assert added(small.load()) == 3.0
    (own / "deep.h").write_text("#define DEEP 2\n")
    assert added(small.load()) == 5.0


def test_a_header_that_comes_before_one_of_a_nested_include_directory_is_noticed(small: SmallBuilder) -> None:
    outer = small.directory / "include"
    inner = outer / "inner"
    inner.mkdir()
    (outer / "nested.h").rename(inner / "nested.h")
    small.flags = [f"-I{outer}", f"-I{inner}"]
    assert added(small.load()) == 1.0
    (outer / "nested.h").write_text("#define NESTED 6.0f\n")
    assert added(small.load()) == 7.0


def test_a_header_moved_here_during_the_build_is_noticed_whatever_its_time(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from op_builder.engine import build as engine

    run_ninja = engine.run_ninja
    other = small.directory / "other.h"
    other.write_text("#define NESTED 9.0f\n")
    os.utime(other, (1, 1))

    def run(*arguments: Any, **options: Any) -> bool:
        done = run_ninja(*arguments, **options)
        if other.exists():
            other.replace(small.directory / "include" / "nested.h")
        return done

    monkeypatch.setattr(engine, "run_ninja", run)
    assert added(small.load()) == 10.0


def test_a_bundle_needs_no_system_headers_where_there_is_no_compiler(
    small: SmallBuilder,
    no_tools: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with env.scope(PATH=os.defpath):
        small.load()
    monkeypatch.setattr("op_builder.load.loader._entries", {})
    (entry,) = small.cache.entries()
    # As if it came from a machine that has them elsewhere.
    manifest = entry.directory / "manifest.json"
    foreign = manifest.read_text().replace('"/usr/include/', '"/nowhere/include/')
    manifest.write_text(foreign)
    entry.directory.rename(entry.directory.with_name(Manifest.from_json(foreign).key.digest))
    with env.scope(ACCEL_JIT="0"):
        assert is_hit(small)
    with env.scope(PATH=os.defpath):
        assert not is_hit(small)


@pytest.mark.parametrize("variable", ["ACCEL_CACHE_MAX_MIB", "ACCEL_MAX_JOBS", "ACCEL_COMPILE_TIMEOUT_S"])
def test_a_wrong_setting_is_told_before_anything_is_compiled(small: SmallBuilder, variable: str) -> None:
    with env.scope(**{variable: "4G"}), pytest.raises(AccelError, match=f"{variable}='4G'"):
        small.load()
    assert small.cache.entries() == []


def test_a_header_of_the_system_that_was_saved_during_the_build_counts(small: SmallBuilder, tmp_path: Path) -> None:
    small.load()
    (entry,) = small.cache.entries("small")
    header = tmp_path / "system.h"
    header.touch()
    plan = small.plan()
    before_ns = time.time_ns()
    key = dataclasses.replace(entry.manifest.key, system=SystemHeaders.of([str(header)]))
    assert not saved_since(before_ns + 10**9, plan, key)
    header.write_text("// changed")
    assert saved_since(before_ns, plan, key)


def test_a_header_that_vanishes_during_a_build_has_it_built_again(small: SmallBuilder, tmp_path: Path) -> None:
    header, compiler = small.directory / "include" / "nested.h", tmp_path / "g++-that-is-slow"
    removed, written = tmp_path / "removed", tmp_path / "written"
    # Somebody generates the header anew while it is compiled: it is gone when the first compile ends, and there later.
    compiler.write_text(
        f"""#!/bin/sh
case "$*" in *-MD*) ;; *) exec g++ "$@" ;; esac
[ -e "{removed}" ] && [ ! -e "{written}" ] && echo "#define NESTED 2.0f" > "{header}" && touch "{written}"
g++ "$@" || exit
[ -e "{removed}" ] || {{ rm "{header}"; touch "{removed}"; }}
"""
    )
    compiler.chmod(0o755)
    with env.scope(CXX=str(compiler)):
        assert added(small.load()) == 3.0
    (entry,) = small.cache.entries()
    assert "nested.h" in {header.path for header in entry.manifest.headers}


def test_a_compiler_asked_for_that_is_not_there_is_told_when_anothers_build_is_taken(
    small: SmallBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    small.load()
    with env.scope(CXX="g++-99", ACCEL_JIT="0"):
        assert added(small.load()) == 1.0
    (warning,) = [record.getMessage() for record in caplog.records if "g++-99" in record.getMessage()]
    assert "any compiler" in warning


@pytest.mark.usefixtures("new_process")
def test_what_was_built_with_flags_in_cxx_is_not_taken_without_them(small: SmallBuilder, tmp_path: Path) -> None:
    with env.scope(CXX="g++ -DOTHERWISE"):
        small.load()
    (entry,) = small.cache.entries()
    assert entry.manifest.key_parts["flags in CXX"] == "-DOTHERWISE"
    with env.scope(PATH=str(tmp_path), CXX=None, ACCEL_JIT="0"), pytest.raises(IncompatibleOpError):
        SmallBuilder(small.directory, Cache(small.cache.root)).jit_load()
