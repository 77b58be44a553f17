"""What changes the binary makes the compiler run, and what cannot change it does not.

Two tables over the whole way of ``load()``. Each row builds a small op for real, changes one thing, and
loads again; the compilers are scripts that note each file they compile before they hand on to the real one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from op_builder import Binding, CUDAOpBuilder
from op_builder.cache import key as cache_key
from op_builder.cache.store import Cache
from op_builder.engine import commands
from op_builder.system import torch_install
from tests.support.compilers import needs_gxx
from tests.support.seeds import ENTRY
from tests.support.small_ops import TorchBuilder, replace_content

# The module's value() says what it was compiled from, part by part.
MAIN = """
#include <Python.h>
#include "beside.h"
#include "outer.h"
#ifdef WITH_PLATFORM
#include <platform.h>
#else
#define PLATFORM 0
#endif
#ifdef TAKES_IN
asm(".pushsection .rodata\\nnumber: .incbin \\"" TAKES_IN "\\"\\n.popsection");
extern "C" const char number[];
#define DEFINED (number[0] - '0')
#endif
#ifdef LOOKS_FOR
#if __has_include(LOOKS_FOR) || __has_include("optional.h")
#define DEFINED 2
#endif
#endif
#ifndef DEFINED
#define DEFINED 1
#endif
#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)
int part();
static PyObject* value(PyObject*, PyObject*) {
  return Py_BuildValue("{s:i,s:i,s:i,s:i,s:i,s:i}", "part", part(), "beside", BESIDE,
    "outer", OUTER, "nested", NESTED, "platform", PLATFORM, "defined", DEFINED);
}
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "mutated", nullptr, -1, methods};
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""

TREE = {
    "op/main.cpp": MAIN,
    "op/part.cpp": "int part() { return 1; }\n",
    "op/beside.h": "#define BESIDE 1\n",
    "op/stable.cpp": ENTRY,
    "op/kernel.cu": '#include "kernel.h"\n__global__ void kernel(int* x) { *x = KERNEL; }\n',
    "op/include/outer.h": '#include "nested.h"\n#define OUTER 1\n',
    "op/include/nested.h": "#define NESTED 1\n",
    "op/include/kernel.h": "#define KERNEL 1\n",
    "op/include/unread.h": "#define UNREAD 1\n",
    "op/first/unread.h": "",
    # Outside the op's own tree.
    "platform/platform.h": "#define PLATFORM 1\n",
    "another/platform.h": "#define PLATFORM 2\n",
    "empty/unread.h": "",
}


class MutatedBuilder(TorchBuilder):
    """A plain Python module, which compiles in a moment."""

    NAME = "mutated"

    def __init__(self, directory: Path, cache: Cache) -> None:
        super().__init__(directory, cache)
        self.files = ["main.cpp", "part.cpp"]
        self.libraries: list[str] = []

    def include_paths(self) -> list[str]:
        return [str(self.directory / name) for name in ("first", "include")]

    def libraries_args(self) -> list[str]:
        return self.libraries


class StableBuilder(MutatedBuilder):
    """One on the Stable ABI."""

    BINDING = Binding.STABLE

    def __init__(self, directory: Path, cache: Cache) -> None:
        super().__init__(directory, cache)
        self.files = ["stable.cpp"]


class KernelBuilder(CUDAOpBuilder, StableBuilder):
    """One with a kernel that is compiled and never run, so that it loads without a device."""

    def __init__(self, directory: Path, cache: Cache) -> None:
        super().__init__(directory, cache)
        self.files = ["stable.cpp", "kernel.cu"]

    def load_checks(self) -> list[Any]:
        return []


Change = Callable[["Bench"], object]


@dataclass
class Bench:
    """One op, the tools it is built with, and what a row needs to change either."""

    root: Path
    builder: MutatedBuilder
    monkeypatch: pytest.MonkeyPatch

    def path(self, name: str) -> Path:
        return self.root / name

    def write_tool(self, name: str, runs: str, answers: str = "", place: str = "tools") -> Path:
        """A script that notes each compiled file and runs the real tool; ``answers`` comes before that."""
        tool = self.path(place) / name
        tool.parent.mkdir(exist_ok=True)
        log = self.path("compiled.log")
        note = f'case " $* " in *" -MF "*|*=link.d*) echo {name} >> "{log}";; esac'
        replace_content(tool, f'#!/bin/sh\n{note}\n{answers}\nexec "{runs}" "$@"\n'.encode())
        tool.chmod(0o755)
        return tool

    def compiled(self) -> int:
        """How many files were compiled or linked so far."""
        log = self.path("compiled.log")
        return len(log.read_text().splitlines()) if log.exists() else 0

    def load(self) -> Any:
        return self.builder.load(verbose=False)

    def as_in_a_new_process(self) -> None:
        """Forget what this process knows, so that only the cache directory can save the compile."""
        self.monkeypatch.setattr("op_builder.load.loader.opened_entries", lambda _op: [])
        self.builder.cache = Cache(self.builder.cache.root)


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench with the builder class that the row asks for."""
    builder: type[MutatedBuilder] = request.param
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = Bench(tmp_path, builder(tmp_path / "op", Cache(tmp_path / "cache")), monkeypatch)
    real = {name: shutil.which(name) for name in ("g++", "nvcc")}
    if issubclass(builder, KernelBuilder) and real["nvcc"] is None:
        pytest.skip("no nvcc on PATH")
    for name, program in real.items():
        if program is not None:
            found.write_tool(name, program)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("op_builder.load.loader.opened_entries", lambda _op: [])
    yield found
    monkeypatch.undo()
    cache_key.cpu_digest.cache_clear()


@dataclass(frozen=True)
class Row:
    """One change.

    Attributes:
        change: makes it, after the first load.
        prepare: sets the stage, before the first load.
        builder: the kind of op.
        shows: the parts of value() that the change makes 2, where the module can show it.
    """

    change: Change
    prepare: Change = lambda _: None
    builder: type[MutatedBuilder] = MutatedBuilder
    shows: tuple[str, ...] = ()


def rows(*, slow: Callable[[str], bool], **table: Row) -> pytest.MarkDecorator:
    """One test per row, under the row's name; ``slow`` tells of a name whether it is one of the slow ones."""
    parameters = [
        pytest.param(row.builder, row, id=name, marks=[pytest.mark.slow] if slow(name) else [])
        for name, row in table.items()
    ]
    return pytest.mark.parametrize(("bench", "row"), parameters, indirect=["bench"])


# Changes of files ----------------------------------------------------------------------------


def edited(name: str, old: str, new: str) -> Change:
    def edit(bench: Bench) -> None:
        text = bench.path(name).read_text()
        assert old in text
        bench.path(name).write_text(text.replace(old, new))

    return edit


def written(name: str, text: str) -> Change:
    def write(bench: Bench) -> None:
        path = bench.path(name)
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


# Changes of flags ----------------------------------------------------------------------------


def flag(place: str, *flags: str) -> Change:
    """Add flags to a list of the builder; ``{root}`` in them is the bench's directory."""

    def add(bench: Bench) -> None:
        getattr(bench.builder, place).extend(text.format(root=bench.root) for text in flags)

    return add


def platform_of_CPATH(bench: Bench) -> None:
    flag("flags", "-DWITH_PLATFORM")(bench)
    environment(CPATH="{root}/platform")(bench)


def archive(value: int, *flags: str) -> Change:
    """Write the static library that takes the place of part.cpp, linked by ``flags``; by its path if there are none."""

    def make(bench: Bench) -> None:
        source, member, library = (bench.path(name) for name in ("archived.cpp", "archived.o", "libpart.a"))
        source.write_text(f"int part() {{ return {value}; }}\n")
        library.unlink(missing_ok=True)
        assert os.system(f"g++ -fPIC -c '{source}' -o '{member}' && ar rcs '{library}' '{member}'") == 0
        bench.builder.files = ["main.cpp"]
        bench.builder.libraries = [flag.format(root=bench.root) for flag in flags] or [str(library)]

    return make


def linker_script(value: int) -> Change:
    """Link part() from the archive that a linker script named libchosen.so says."""

    def make(bench: Bench) -> None:
        archive(value, "-L{root}", "-lchosen")(bench)
        bench.path("libpart.a").rename(bench.path(f"libpart{value}.a"))
        bench.path("libchosen.so").write_text(f"INPUT({bench.path(f'libpart{value}.a')})\n")

    return make


def link(name: str, target: str) -> Change:
    """Make a file a link to another beside it, as ``update-alternatives`` does."""

    def switch(bench: Bench) -> None:
        bench.path(name).unlink()
        bench.path(name).symlink_to(target)

    return switch


def two_versions_of_outer(bench: Bench) -> None:
    text = bench.path("op/include/outer.h").read_text()
    bench.path("op/include/outer-1.h").write_text(text)
    bench.path("op/include/outer-2.h").write_text(text.replace("OUTER 1", "OUTER 2"))
    link("op/include/outer.h", "outer-1.h")(bench)


def response_file(value: int, *flags: str, text: str = "-DDEFINED={value}") -> Change:
    """Write a response file; ``flags`` are C++ flags that name it."""

    def write(bench: Bench) -> None:
        replace_content(bench.path("flags.rsp"), text.format(value=value).encode())
        flag("flags", *flags)(bench)

    return write


def both(*changes: Change) -> Change:
    return lambda bench: [change(bench) for change in changes]


# Changes of tools and of the machine ---------------------------------------------------------


def environment(**variables: str) -> Change:
    """Set variables; ``{root}`` in a value is the bench's directory, ``{PATH}`` the path as it is."""

    def change(bench: Bench) -> None:
        for name, value in variables.items():
            bench.monkeypatch.setenv(name, value.format(root=bench.root, PATH=os.environ["PATH"]))

    return change


def answering(version: str) -> str:
    """Of a tool's script: what it says when asked for its version."""
    return f'case "$1" in --version) echo "{version}"; exit 0;; esac'


def real_cxx() -> str:
    """The compiler behind the bench's script."""
    return str(shutil.which("g++", path=os.pathsep.join(os.environ["PATH"].split(os.pathsep)[1:])))


def cxx_behind_a_wrapper(bench: Bench) -> None:
    """g++ is a script that runs a program of PATH, which is upgraded while the script stays."""
    proper = bench.path("behind/cc1plus")
    tell = f'case "$1" in -print-prog-name=cc1plus) echo "{proper}"; exit 0;; esac\n{answering("g++ 1.0")}'
    behind = bench.write_tool("g++-behind", real_cxx(), tell, place="behind")
    proper.write_text("the compiler proper, as it was\n")
    bench.write_tool("g++", behind.name)
    environment(PATH=f"{{PATH}}:{behind.parent}")(bench)


def upgrade_behind_the_wrapper(bench: Bench) -> None:
    behind = bench.path("behind/g++-behind")
    replace_content(behind, behind.read_bytes().replace(b"g++ 1.0", b"g++ 1.1"))
    behind.chmod(0o755)
    replace_content(bench.path("behind/cc1plus"), b"the compiler proper, upgraded\n")


def nvcc_answers(release: str) -> Change:
    def change(bench: Bench) -> None:
        path = os.pathsep.join(os.environ["PATH"].split(os.pathsep)[1:])
        said = f"Cuda compilation tools, release {release.rpartition('.')[0]}, V{release}"
        bench.write_tool("nvcc", str(shutil.which("nvcc", path=path)), answering(said))

    return change


def another_cpu(bench: Bench) -> None:
    """Another machine's /proc/cpuinfo, seen by a new process."""
    real = Path.read_text

    def read_text(path: Path, *arguments: Any, **options: Any) -> str:
        if str(path) == "/proc/cpuinfo":
            return "processor\t: 0\nmodel name\t: Another CPU\nflags\t\t: fpu sse avx99\n"
        return real(path, *arguments, **options)

    bench.monkeypatch.setattr(Path, "read_text", read_text)
    cache_key.cpu_digest.cache_clear()


def stable_op_that_reads_a_header_of_torch(bench: Bench) -> None:
    written("torch/include/torch/read.h", "#define READ 1\n")(bench)
    edited("op/stable.cpp", ENTRY, f"#include <torch/read.h>\n{ENTRY}")(bench)
    changed = torch_install.torch_install()._replace(root=bench.path("torch"))
    changed.library_dir.symlink_to(torch_install.torch_install().library_dir)
    for module in (cache_key, commands):
        bench.monkeypatch.setattr(module, "torch_install", lambda: changed)


# Each compiles twice. These stand for the others of their kind.
QUICK = (
    "link_to_a_header",
    "header_that_was_missing",
    "flag_in_CXX",
)


@needs_gxx
@rows(
    slow=lambda name: name not in QUICK,
    # sources
    second_source=Row(edited("op/part.cpp", "return 1", "return 2"), shows=("part",)),
    kernel_source=Row(edited("op/kernel.cu", "KERNEL;", "KERNEL + 1;"), builder=KernelBuilder),
    # headers
    nested_header=Row(edited("op/include/nested.h", "1", "2"), shows=("nested",)),
    link_to_a_header=Row(link("op/include/outer.h", "outer-2.h"), prepare=two_versions_of_outer, shows=("outer",)),
    # headers that come before others of their name
    new_header_in_a_directory_named_by_a_flag=Row(
        written("empty/outer.h", '#include "nested.h"\n#define OUTER 2\n'),
        prepare=flag("flags", "-I{root}/empty"),
        shows=("outer",),
    ),
    # flags
    flag=Row(flag("flags", "-DDEFINED=2"), shows=("defined",)),
    static_library_behind_an_unchanged_flag=Row(archive(2), prepare=archive(1), shows=("part",)),
    linker_script=Row(linker_script(2), prepare=linker_script(1), shows=("part",)),
    flag_in_CXX=Row(
        environment(CXX="{root}/tools/g++ -DDEFINED=2"), prepare=environment(CXX="{root}/tools/g++"), shows=("defined",)
    ),
    include_directory_in_CPATH=Row(
        environment(CPATH="{root}/another"),
        prepare=platform_of_CPATH,
        shows=("platform",),
    ),
    flag_in_NVCC_APPEND_FLAGS=Row(environment(NVCC_APPEND_FLAGS="-lineinfo"), builder=KernelBuilder),
    # inputs that no depfile of a compiler lists
    response_file=Row(response_file(2), prepare=response_file(1, "@{root}/flags.rsp"), shows=("defined",)),
    response_file_of_the_linker=Row(
        response_file(2, text="--defsym x={value}"),
        prepare=both(response_file(1, text="--defsym x={value}"), flag("link", "-Wl,@{root}/flags.rsp")),
    ),
    file_that_the_assembler_takes_in=Row(
        lambda bench: replace_content(bench.path("number"), b"2"),
        prepare=both(written("number", "1"), flag("flags", '-DTAKES_IN="{root}/number"')),
        shows=("defined",),
    ),
    specs_of_gcc=Row(
        lambda bench: replace_content(bench.path("specs"), b"%rename lib old_lib\n\n"),
        prepare=both(written("specs", ""), flag("flags", "-specs={root}/specs")),
    ),
    header_that_was_missing=Row(
        written("op/first/optional.h", ""), prepare=flag("flags", '-DLOOKS_FOR="none.h"'), shows=("defined",)
    ),
    # compilers
    upgrade_behind_an_unchanged_wrapper=Row(upgrade_behind_the_wrapper, prepare=cxx_behind_a_wrapper),
    version_of_nvcc=Row(nvcc_answers("13.9.9"), builder=KernelBuilder),
    cuda_architectures=Row(environment(TORCH_CUDA_ARCH_LIST="8.0"), builder=KernelBuilder),
    # torch
    torch_header_that_a_stable_op_reads=Row(
        edited("torch/include/torch/read.h", "1", "2"),
        prepare=stable_op_that_reads_a_header_of_torch,
        builder=StableBuilder,
    ),
    torch_headers=Row(lambda bench: bench.monkeypatch.setattr(cache_key, "header_stamp", lambda _: "of another torch")),
    # the machine
    another_cpu_under_march_native=Row(another_cpu, prepare=flag("flags", "-march=native")),
)
def test_a_change_that_can_change_the_binary_compiles_anew_and_runs(bench: Bench, row: Row) -> None:
    row.prepare(bench)
    first = bench.load()
    values = first.value() if row.shows else {}
    before = bench.compiled()
    assert before >= len(bench.builder.files)

    row.change(bench)
    second = bench.load()
    after = bench.compiled()
    assert after > before
    if row.shows:
        assert {name for name, number in values.items() if number != 1} <= {"platform"}
        assert second.value() == {**values, **dict.fromkeys(row.shows, 2)}
        assert first.value() == values, "the old code goes on running"

    bench.as_in_a_new_process()
    bench.load()
    assert bench.compiled() == after, "once is enough"


# What changes nothing ------------------------------------------------------------------------


def reinstalled(bench: Bench) -> None:
    """All of the tree is unpacked anew: the same content with other inodes and times."""
    bench.path("op").rename(bench.path("old"))
    shutil.copytree(bench.path("old"), bench.path("op"), copy_function=shutil.copyfile)
    shutil.rmtree(bench.path("old"))


def moved(bench: Bench) -> None:
    bench.path("elsewhere/deeper").mkdir(parents=True)
    bench.path("op").rename(bench.path("elsewhere/deeper/checkout"))
    bench.builder.directory = bench.path("elsewhere/deeper/checkout")


def cache_moved(bench: Bench) -> None:
    bench.path("cache").rename(bench.path("cache of another home"))
    bench.builder.cache = Cache(bench.path("cache of another home"))


@needs_gxx
@rows(
    slow=lambda name: name == "another_cpu",
    package_installed_again=Row(reinstalled),
    checkout_moved=Row(moved),
    cache_moved=Row(cache_moved),
    unread_header_edited=Row(edited("op/include/unread.h", "UNREAD 1", "UNREAD 2  // with a comment")),
    locale=Row(environment(LANG="de_DE.UTF-8", LC_ALL="C.UTF-8", LANGUAGE="de")),
    number_of_jobs=Row(environment(MAX_JOBS="3", ACCEL_MAX_JOBS="2", ACCEL_COMPILE_TIMEOUT_S="600")),
    another_cpu=Row(another_cpu),
)
def test_a_change_that_cannot_change_the_binary_compiles_nothing(bench: Bench, row: Row) -> None:
    row.prepare(bench)
    bench.load()
    (entry,) = bench.builder.cache.entries(bench.builder.name)
    before = bench.compiled()
    assert before >= len(bench.builder.files)

    row.change(bench)
    bench.load()
    assert bench.compiled() == before

    # What was open in this process may have hidden the state of the cache.
    bench.as_in_a_new_process()
    bench.load()
    assert bench.compiled() == before
    assert [found.manifest for found in bench.builder.cache.entries(bench.builder.name)] == [entry.manifest]
