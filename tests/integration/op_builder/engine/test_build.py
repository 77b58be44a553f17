"""Building for real: compile, try, publish, load; what a second load costs; what an edit does."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from op_builder import env
from op_builder.cache.store import MANIFEST, Cache
from op_builder.errors import AccelError, IncompatibleOpError, LoadError
from op_builder.load import resolver
from tests.support.compilers import program
from tests.support.small_ops import STABLE_SOURCE, SmallBuilder, added, make_small

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
    return resolver.Request.of(builder).find_cached() is not None


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
    of_torch = {header.path for header in entry.manifest.headers if header.root == "torch"}
    assert "torch/csrc/stable/c/shim.h" in of_torch
    assert {header.path for header in entry.manifest.headers} - of_torch == {"amount.h", "nested.h", *ours}
    assert list((small.cache.home / "staging").iterdir()) == []


def test_the_binary_needs_torchs_libraries_and_names_no_place(small: SmallBuilder) -> None:
    small.load()
    (entry,) = small.cache.entries("small")
    listed = subprocess.run(["readelf", "-d", str(entry.artifact)], capture_output=True, text=True, check=True)
    assert re.findall(r"NEEDED.*\[(.*)\]", listed.stdout)[:2] == ["libtorch_cpu.so", "libc10.so"]
    assert "PATH" not in listed.stdout
    content = entry.artifact.read_bytes()
    assert str(small.directory).encode() not in content
    assert str(Path(torch.__file__).parent).encode() not in content


@pytest.mark.parametrize("by_compiler", [False, True])
def test_a_linker_that_must_find_all_symbols_meets_torchs_own_libraries(small: SmallBuilder, by_compiler: bool) -> None:
    if not by_compiler:
        small.link.append("-Wl,-z,defs")
    with env.scope(CXX="g++ -Wl,--no-undefined" if by_compiler else "g++"):
        assert added(small.load()) == 1.0


def test_second_load_is_the_same_object_and_compiles_nothing(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    with env.scope(PATH=TOOLS):
        first = small.load()
    assert SmallBuilder(small.directory, small.cache).load() is first


def test_an_edit_runs_in_the_same_process_and_old_code_stays_cached(small: SmallBuilder) -> None:
    one = small.load()
    nested(small, "41.0f")
    other = small.load()
    assert (added(one), added(other)) == (1.0, 42.0)
    nested(small, "0.0f")
    assert small.load() is one
    assert len(small.cache.entries()) == 2


def test_a_loaded_op_stays_loaded_when_the_cache_is_cleared(small: SmallBuilder) -> None:
    first = small.load()
    shutil.rmtree(small.cache.root)
    with env.scope(ACCEL_JIT="0"):
        assert small.load() is first


def test_a_copied_tree_hits_and_its_build_makes_the_same_bits(small: SmallBuilder, tmp_path: Path) -> None:
    small.load()
    shutil.copytree(small.directory, tmp_path / "copy")
    with env.scope(ACCEL_JIT="0"):
        assert added(SmallBuilder(tmp_path / "copy", small.cache).load()) == 1.0
    other = SmallBuilder(tmp_path / "copy", Cache(tmp_path / "other cache"))
    resolver.compile_now(resolver.Request.of(other))
    (one,), (two,) = small.cache.entries(), other.cache.entries()
    assert one.manifest.sha256 == two.manifest.sha256


def test_sources_of_the_same_base_name_in_a_directory_with_spaces_and_dollars(tmp_path: Path, cache: Cache) -> None:
    small = make_small(tmp_path / "my $ops: new", cache)
    for name in ("a", "b"):
        (small.directory / name).mkdir()
        (small.directory / name / "part.cpp").write_text(f"int part_{name}() {{ return 1; }}\n")
        small.files.append(f"{name}/part.cpp")
    assert added(small.load()) == 1.0


def test_read_only_use_without_compiler_and_ninja_hits(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    with env.scope(PATH=TOOLS):
        small.load()
    shutil.rmtree(small.cache.home / "memo")
    request = resolver.Request.of(SmallBuilder(small.directory, Cache(small.cache.root)))
    assert request.toolset is None
    assert request.find_cached() is not None


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


def test_a_wrong_source_is_named(small: SmallBuilder) -> None:
    small.files.append("absent.cpp")
    with pytest.raises(AccelError, match=r"absent\.cpp"):
        small.load()
    assert not small.is_compatible()
    small.files[-1] = "kernel.f90"
    (small.directory / "kernel.f90").write_text("")
    with pytest.raises(AccelError, match=r"\.f90"):
        small.plan()


@pytest.mark.parametrize("variable", ["ACCEL_CACHE_MAX_MIB", "ACCEL_MAX_JOBS", "ACCEL_COMPILE_TIMEOUT_S"])
def test_a_wrong_setting_is_an_error_before_anything_is_compiled(small: SmallBuilder, variable: str) -> None:
    with env.scope(**{variable: "4G"}), pytest.raises(AccelError, match=f"{variable}='4G'"):
        small.load()
    assert small.cache.entries() == []


# What fails ---------------------------------------------------------------------------------


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
    assert small.cache.entries() == []


def test_torch_cxx_symbols_in_a_stable_op_are_refused(small: SmallBuilder) -> None:
    sneaked = "\nnamespace at { int get_num_threads(); }\nint sneaked() { return at::get_num_threads(); }\n"
    (small.directory / "small.cpp").write_text(STABLE_SOURCE + sneaked)
    with pytest.raises(LoadError, match="stable C ABI"):
        small.load()


# Changes during a build ---------------------------------------------------------------------


def compiler_that(directory: Path, does_first: str) -> str:
    """A g++ that does something when its first compile ends."""
    once = f'[ -e "{directory}/done" ] || {{ touch "{directory}/done"; {does_first}; }}'
    body = f'case "$*" in *-MD*) ;; *) exec g++ "$@" ;; esac\ng++ "$@" || exit\n{once}'
    return str(program(directory / "g++-and-more", body))


@pytest.mark.parametrize("moved", [False, True])
def test_a_header_saved_or_moved_here_during_the_build_is_noticed(
    small: SmallBuilder, tmp_path: Path, moved: bool
) -> None:
    header, other = small.directory / "include" / "nested.h", small.directory / "other.h"
    other.write_text("#define NESTED 6.0f\n")
    does = f'touch -d @1 "{other}"; mv "{other}" "{header}"' if moved else f'cat "{other}" > "{header}"'
    with env.scope(CXX=compiler_that(tmp_path, does)):
        assert added(small.load()) == 7.0


def test_a_header_that_vanishes_during_a_build_has_it_built_again(small: SmallBuilder, tmp_path: Path) -> None:
    # A generator writes the header anew while it is compiled: it is missing when the first compile ends.
    header = small.directory / "include" / "nested.h"
    compiler = Path(compiler_that(tmp_path, f'rm "{header}"'))
    again = f'[ -e "{tmp_path}/done" ] && echo "#define NESTED 2.0f" > "{header}"\n'
    compiler.write_text(compiler.read_text().replace('g++ "$@" || exit', f'{again}g++ "$@" || exit'))
    with env.scope(CXX=str(compiler)):
        assert added(small.load()) == 3.0
    (entry,) = small.cache.entries()
    assert "nested.h" in {header.path for header in entry.manifest.headers}


def test_a_new_file_that_the_compiler_does_not_read_costs_one_build_at_most(small: SmallBuilder) -> None:
    source = small.directory / "small.cpp"
    source.write_text(source.read_text().replace('"amount.h"', "<amount.h>"))
    small.load()
    # Angle brackets do not look beside the source; the key cannot know which brackets were used.
    (small.directory / "amount.h").write_text("#error not me\n")
    assert added(small.load()) == 1.0
    assert is_hit(small)


# Entries of other compilers -----------------------------------------------------------------


@pytest.mark.usefixtures("new_process")
def test_a_bundle_needs_no_system_headers_where_there_is_no_compiler(small: SmallBuilder, no_tools: None) -> None:  # noqa: ARG001
    with env.scope(PATH=TOOLS):
        resolver.compile_now(resolver.Request.of(small))
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


def test_a_missing_compiler_that_was_asked_for_is_a_warning_when_anothers_build_is_used(
    small: SmallBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    small.load()
    with env.scope(CXX="g++-99", ACCEL_JIT="0"):
        assert added(small.load()) == 1.0
    (warning,) = [record.getMessage() for record in caplog.records if "g++-99" in record.getMessage()]
    assert "any compiler" in warning


@pytest.mark.usefixtures("new_process")
def test_a_build_with_flags_in_cxx_is_not_used_without_them(small: SmallBuilder, tmp_path: Path) -> None:
    with env.scope(CXX="g++ -DOTHERWISE"):
        resolver.compile_now(resolver.Request.of(small))
    (entry,) = small.cache.entries()
    assert entry.manifest.key_parts["flags in CXX"] == "-DOTHERWISE"
    with env.scope(PATH=str(tmp_path), CXX=None, ACCEL_JIT="0"), pytest.raises(IncompatibleOpError):
        SmallBuilder(small.directory, Cache(small.cache.root)).jit_load()


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
def test_headers_of_gccs_library_count_by_content_where_clang_reads_them(small: SmallBuilder) -> None:
    with env.scope(CXX="clang++"):
        small.jit_load()
    (entry,) = small.cache.entries()
    of_library = {name for name in entry.manifest.system_headers.paths if "/c++/" in name}
    assert any(name.endswith("/cstdint") for name in of_library)
    assert not any("/clang/" in name for name in entry.manifest.system_headers.paths), "clang's version covers these"
