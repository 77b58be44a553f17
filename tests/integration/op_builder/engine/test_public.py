"""The engine as another project uses it."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import threading
from pathlib import Path

import pytest

from op_builder import OpBuilder, env
from op_builder.cache.manifest import MANIFEST, Manifest
from op_builder.engine import Binding, BuiltLibrary, JobBudget, Recipe, build_library, user_cache_dir
from op_builder.errors import (
    AccelError,
    ArgumentError,
    BuildCancelled,
    CompileError,
    LoadError,
    SourceNotFoundError,
    ToolchainError,
)
from tests.support.compilers import EndlessCompiler, needs_gxx, program, require_program
from tests.support.foreign_package import output_of
from tests.support.small_ops import ENTRY, MODULE
from tests.support.waiting import wait_until

VALUE = Recipe("value", Binding.C, sources=(), texts={"value.c": "int value(void) { return VALUE; }\n"})
ONE = VALUE._replace(cxx_flags=("-DVALUE=1",))
PYTHON = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "value", nullptr, -1};
PyMODINIT_FUNC PyInit_value() {
  return PyImport_ImportModule("pytest") == nullptr ? nullptr : PyModule_Create(&definition);
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def value(library: BuiltLibrary) -> int:
    return int(ctypes.CDLL(str(library.path)).value())


def test_a_library_is_built_once_and_the_reason_of_a_build_is_what_changed(root: Path) -> None:
    first = build_library(ONE, cache_root=root)
    assert first.path.is_relative_to(root)
    assert (value(first), first.reasons) == (1, ("the cache contains no 'value'",))
    assert build_library(ONE, cache_root=root) == first._replace(is_cached=True, reasons=())
    second = build_library(VALUE._replace(cxx_flags=("-DVALUE=2",)), cache_root=root)
    assert (value(second), second.is_cached, second.key == first.key) == (2, False, False)
    assert second.reasons == ("c++ flags: -'-DVALUE=1', +'-DVALUE=2'",)


def test_an_edited_header_is_the_reason(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "value.c").write_text('#include "value.h"\nint value(void) { return VALUE; }\n')
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "value.h"
    header.write_text("#define VALUE 3\n")
    monkeypatch.chdir(tmp_path)
    recipe = Recipe("value", Binding.C, sources=("value.c",), include_dirs=("include",))
    assert value(build_library(recipe, cache_root="cache")) == 3
    header.write_text("#define VALUE 40\n")
    edited = build_library(recipe, cache_root=root)
    assert (value(edited), edited.reasons) == (40, ("value.h changed",))


def test_a_precompiled_header_of_the_user_counts(root: Path, tmp_path: Path) -> None:
    header = tmp_path / "value.h"
    header.write_text("#define VALUE 1\n")
    recipe = VALUE._replace(texts={"value.c": '#include "value.h"\nint value(void) { return VALUE; }\n'})
    recipe = recipe._replace(include_dirs=(str(tmp_path),))
    assert value(build_library(recipe, cache_root=root)) == 1
    for expected in (2, 3):
        (tmp_path / "newer.h").write_text(f"#define VALUE {expected}\n")
        flags = ("-fmax-errors=20", "-O2", "-fPIC")
        subprocess.run(["g++", *flags, "-x", "c-header", "newer.h", "-o", "value.h.gch"], cwd=tmp_path, check=True)
        built = build_library(recipe, cache_root=root)
        assert value(built) == expected
        assert "value.h.gch" in built.reasons[0]  # which of two entries is the nearest varies


@pytest.mark.parametrize(
    ("line", "flag", "compiler"),
    [
        ('asm(".incbin \\"{tree}/number\\"");', "-lc", "clang++"),
        ('asm(".include \\"{tree}/number\\"");', "-lc", "clang++"),
        ('#if 0\n#embed "{tree}/number"\n#endif', "-lc", "g++"),
        ("#define NAME <number>\n#if __has_include(NAME)\n#endif", "-lc", "g++"),
        ("", "-specs={tree}/number", "g++"),
        ("", "{tree}/libthin.a", "g++"),
        ("", "{tree}/libvalue.so", "{tree}/unlisting-g++"),
    ],
)
def test_what_no_tool_lists_makes_each_process_build(
    root: Path, tmp_path: Path, line: str, flag: str, compiler: str
) -> None:
    for name in ("number", "member.c"):
        (tmp_path / name).touch()
    subprocess.run(["gcc", "-c", "member.c"], cwd=tmp_path, check=True)
    subprocess.run(["ar", "crT", "libthin.a", "member.o"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-shared", "member.o", "-o", "libvalue.so"], cwd=tmp_path, check=True)
    # Its linker cannot list the files that it opens.
    gxx = require_program("g++")
    program(tmp_path / "unlisting-g++", f'case "$*" in *--help) exit;; esac\nexec {gxx} "$@"')
    texts = {"value.cpp": f"{line.format(tree=tmp_path)}\nint value() {{ return 1; }}\n"}
    code = f"""
import logging, sys
from op_builder.engine import Binding, Recipe, build_library
logging.basicConfig(stream=sys.stdout, format="%(message)s")
recipe = Recipe("value", Binding.C, (), {texts!r}, link_flags=({flag.format(tree=tmp_path)!r},))
for _ in range(2):
    print(*build_library(recipe, cache_root={str(root)!r})[2:])
"""
    cxx = compiler.format(tree=tmp_path) if "/" in compiler else require_program(compiler)
    for reason in ("the cache contains no", "no tool lists"):
        warning, built, again = output_of("-c", code, CXX=cxx).splitlines()
        assert warning.startswith("Each process builds 'value' again: no tool lists the inputs of ")
        assert built.startswith("False")
        assert reason in built
        assert again == "True ()"


def test_the_reason_names_a_changed_source_among_those_of_one_name(root: Path, tmp_path: Path) -> None:
    sources = [tmp_path / name / "value.c" for name in ("one", "two")]
    for source in sources:
        source.parent.mkdir()
        source.write_text(f"int {source.parent.name}(void) {{ return 1; }}\n")
    recipe = Recipe("value", Binding.C, sources=tuple(map(str, sources)))
    assert build_library(recipe, cache_root=root).reasons == ("the cache contains no 'value'",)
    sources[0].write_text("int one(void) { return 2; }\n")
    assert build_library(recipe, cache_root=root).reasons == ("value.c changed",)
    sources[1].write_text("int two(void) { return 2; }\n")
    assert build_library(recipe, cache_root=root).reasons == ("value.c (2) changed",)


def test_processes_with_other_hashes_build_under_one_key(root: Path, tmp_path: Path) -> None:
    sources = [tmp_path / name / "value.c" for name in ("one", "two", "three", "four", "five")]
    for source in sources:
        source.parent.mkdir()
        source.with_name(f"{source.parent.name}.h").touch()
        source.write_text(f'#include "{source.parent.name}.h"\nint {source.parent.name}(void) {{ return 1; }}\n')
    code = f"""
from op_builder.engine import Binding, Recipe, build_library
import sys
print(build_library(Recipe("value", Binding.C, sources={tuple(map(str, sources))}), cache_root=sys.argv[1]).key)
"""
    keys = {output_of("-c", code, root / seed, PYTHONHASHSEED=seed) for seed in "123"}
    assert len(keys) == 1


def test_the_cache_serves_a_machine_without_a_compiler(root: Path, tmp_path: Path) -> None:
    built = build_library(ONE, cache_root=root)
    with env.scope(PATH=str(tmp_path), CXX=None):
        assert build_library(ONE, cache_root=root) == built._replace(is_cached=True, reasons=())
        with pytest.raises(ToolchainError, match="compiler"):
            build_library(VALUE, cache_root=root)


def test_an_entry_that_does_not_fit_the_machine_is_no_hit_without_a_compiler(root: Path, tmp_path: Path) -> None:
    manifest = build_library(ONE, cache_root=root).path.with_name(MANIFEST)
    newer = Manifest.from_json(manifest.read_text())._replace(needs={"GLIBC": "9.99"})
    manifest.write_text(newer.to_json())
    with env.scope(PATH=str(tmp_path), CXX=None), pytest.raises(ToolchainError, match="compiler"):
        build_library(ONE, cache_root=root)


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        pytest.param(Binding.PYTHON, PYTHON, id="a module that imports a package"),
        pytest.param(Binding.TORCH, f"#define VALUE 5\n{MODULE}", id="torch's C++ API"),
        pytest.param(Binding.STABLE, ENTRY, id="torch's Stable ABI"),
    ],
)
def test_every_binding_builds(root: Path, binding: Binding, text: str) -> None:
    recipe = Recipe("value", binding, sources=(), texts={"value.cpp": text})
    assert build_library(recipe, cache_root=root).reasons
    assert build_library(recipe, cache_root=root).is_cached


def test_a_source_in_parts_is_compiled_once_for_each_and_is_one_file(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "value.c"
    source.write_text(
        "#if ACCEL_PART == 0\nint part(void); int value(void) { return part(); }\n"
        "#else\nint part(void) { return ACCEL_PART; }\n#endif\n"
    )
    recipe = Recipe("value", Binding.C, sources=(str(source),), parts={str(source): 2})
    steps = set()
    with caplog.at_level(logging.INFO):
        built = build_library(recipe, cache_root=root, progress=lambda _done, _total, step: steps.add(step))
    assert value(built) == 1
    assert "'value' (1 file, " in caplog.text
    assert {step for step in steps if step.startswith("compile")} == {
        f"compile {source.name} (part {part} of 2)" for part in (1, 2)
    }


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"op": "not-a-name"}, ArgumentError, "not a valid op name"),
        ({"binding": "c"}, ArgumentError, "its binding is 'c'"),
        ({"texts": {}}, ArgumentError, "no sources"),
        ({"texts": {"value.txt": "1"}}, ArgumentError, "unknown suffix"),
        ({"texts": {"../value.c": "1"}}, ArgumentError, "plain file name"),
        ({"sources": ("missing.c",)}, SourceNotFoundError, "missing.c"),
        ({"sources": ("/",)}, SourceNotFoundError, "not a file"),
        ({"cxx_flags": "-O3"}, ArgumentError, "its cxx_flags"),
        ({"source_flags": {"other.c": ("-O3",)}}, ArgumentError, "other.c"),
        ({"source_flags": ("-O3",)}, ArgumentError, "source_flags"),
        ({"texts": {"value.c": 3}}, ArgumentError, "texts"),
        ({"texts": ["value.c"]}, ArgumentError, "texts"),
        ({"libraries": ("m",)}, ArgumentError, "libraries"),
        ({"owner": int, "kernels": ("value.sycl.hpp",)}, ArgumentError, "kernels, owner"),
        ({"sycl_toolchain": "icpx"}, ArgumentError, "sycl_toolchain"),
        ({"parts": {"other.c": 2}}, ArgumentError, "other.c"),
        ({"sources": ("a.c",), "parts": {"a.c": 0}}, ArgumentError, "parts of 'a.c' is 0"),
        ({"sources": ("a.c",), "parts": {"a.c": "2"}}, ArgumentError, "parts of 'a.c' is '2'"),
    ],
)
def test_a_bad_recipe_is_refused_before_anything_is_written(
    root: Path, changes: dict[str, object], error: type[AccelError], words: str
) -> None:
    with pytest.raises(error, match=words):
        build_library(ONE._replace(**changes), cache_root=root)
    assert not root.exists()


@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [
        (VALUE, CompileError, "VALUE"),
        (ONE._replace(texts={"value.c": "int gone(void); int value(void) { return gone(); }"}), LoadError, "gone"),
        (ONE._replace(op="other", binding=Binding.PYTHON), LoadError, "PyInit_other"),
    ],
)
def test_a_failed_build_leaves_no_library(root: Path, recipe: Recipe, error: type[AccelError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        build_library(recipe, cache_root=root)
    assert len(caught.traceback) == 2, "the engine's frames would hide the caller"
    assert not list(root.rglob("*.so"))


def test_the_default_cache_can_have_a_name_of_its_own(tmp_path: Path) -> None:
    with env.scope(XDG_CACHE_HOME=str(tmp_path), ACCEL_CACHE_DIR=str(tmp_path / "other")):
        assert user_cache_dir("acme") == tmp_path / "acme"
        assert build_library(ONE).path.is_relative_to(tmp_path / "other")
    with pytest.raises(ArgumentError, match="a/b"):
        user_cache_dir("a/b")


def test_progress_goes_to_the_caller(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    steps: list[tuple[int, int, str]] = []
    with caplog.at_level(logging.WARNING):
        build_library(ONE, cache_root=root, progress=lambda *step: steps.append(step), budget=JobBudget(1))
    assert steps[-1] == (2, 2, "link value.so")
    assert caplog.records == []


@needs_gxx
def test_a_build_ends_when_it_is_cancelled_or_the_time_is_up(root: Path, tmp_path: Path) -> None:
    compiler, cancel = EndlessCompiler(tmp_path), threading.Event()
    with env.scope(CXX=str(compiler.path)):
        with pytest.raises(ToolchainError, match="did not end within"):
            build_library(ONE, cache_root=root, timeout_s=0.5)
        cancel.set()
        with pytest.raises(BuildCancelled):
            build_library(ONE, cache_root=root, cancel=cancel)
    wait_until(compiler.ended)  # a signal needs a moment
    assert not list(root.rglob("*.so"))


class ValueBuilder(OpBuilder):
    NAME = "value"
    BINDING = Binding.C

    def source_texts(self) -> dict[str, str]:
        return dict(VALUE.texts)

    def sources(self) -> list[str]:
        return []

    def cxx_args(self) -> list[str]:
        return ["-DVALUE=7"]


@pytest.mark.usefixtures("own_cache")
def test_a_builder_can_have_a_binding_without_torch() -> None:
    builder = ValueBuilder("value")
    assert builder.load().value() == 7
    (entry,) = builder.cache.entries("value")
    manifest = entry.manifest
    assert (manifest.torch, manifest.torch_needed, manifest.python_needed) == ("", "any", "any")
    assert "torch" not in {outcome.name for outcome in builder.check()}
