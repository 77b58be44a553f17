"""Builds and binaries that fail for a reason we put there: the true cause stands in the last ten lines of the error.

Each failure is a real one, of the real compiler, linker or nvcc, and is met the way a user meets it: by ``load()``.
"""

from __future__ import annotations

import io
import logging
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from op_builder import Binding, env
from op_builder.errors import AccelError, CacheError, CompileError, IncompatibleOpError, LoadError
from op_builder.system.torch_install import torch_install
from tests.support.compilers import needs_gxx, program, require_program, shared_library
from tests.support.small_ops import ENTRY, KernelBuilder, SmallBuilder, TorchBuilder

pytestmark = needs_gxx

# A Python module, of which the body of its init function is to be filled in.
MODULE = '#include <Python.h>\nextern "C" PyObject* PyInit_small() {\n  %s\n}\n'
THROW = """#include <stdexcept>
int ask() { throw std::runtime_error("no acme device"); }
int x = ask();
"""


def failure(builder: SmallBuilder, source: str, raises: type[AccelError], *causes: str, remedy: str = "") -> None:
    """Let an op of one source fail to load with these causes and this remedy, empty where none is known."""
    (builder.directory / builder.files[0]).write_text(source)
    with env.scope(CXX=env.CXX.raw() or "g++"), pytest.raises(raises) as caught:  # the expected texts are those of g++
        builder.load()
    error = caught.value
    seen = "\n".join("".join(traceback.format_exception(error)).splitlines()[-10:])
    for text in (*causes, remedy):
        assert text in seen
    assert bool(error.remedy) is bool(remedy), "a remedy where none is known leads astray"
    assert builder.cache.entries() == []
    assert len(traceback.extract_tb(error.__traceback__)) <= 4, "the engine's frames would hide the caller"
    if isinstance(error, CompileError):
        assert f"Command: {error.command}\n" in seen
        assert f"Full log: {error.log_path}" in seen
        assert error.command in Path(error.log_path).read_text(errors="replace")


def test_a_linker_script_that_is_no_file_is_not_called_a_problem_of_permissions(small: SmallBuilder) -> None:
    small.link = ["-Wl,-T,/dev/null"]
    failure(small, ENTRY, CacheError, "/dev/null", remedy="or its name in the op's")


def test_verbose_writes_steps_to_stderr_where_logging_is_not_configured(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("op_builder"), "propagate", False)
    small.load(verbose=True)
    assert "compile small.cpp" in capsys.readouterr().err


def test_verbose_fails_no_build_whose_stderr_cannot_be_written(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("op_builder"), "propagate", False)

    class Broken(io.StringIO):
        def write(self, text: str) -> int:  # noqa: ARG002
            raise BrokenPipeError

    for stream in (None, Broken()):
        monkeypatch.setattr("sys.stderr", stream)
        small.flags += ["-DOTHER"]
        small.load(verbose=True)


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("small.cpp", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "a pointer of Git LFS"),
        ("include/found.h", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "a pointer of Git LFS"),
        ("include/libfoo.a", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "a pointer of Git LFS"),
        ("include/libfoo.so", b"<!DOCTYPE html>\n<p>Log in</p>\n", "a web page"),
        ("small.cpp", b"<html>\n<p>Log in</p>\n", "a web page"),
        ("small.cpp", f"{ENTRY}\n".encode("utf-16"), "UTF-16"),
        ("include/found.h", b"\x7fELF\2\1\1\0\0", "binary"),
    ],
)
def test_a_file_that_is_not_what_its_name_promises_is_named(
    small: SmallBuilder, name: str, content: bytes, remedy: str
) -> None:
    (small.directory / "small.cpp").write_text(f'#include "found.h"\n{ENTRY}')
    (small.directory / "include" / "found.h").touch()
    (small.directory / name).write_bytes(content)
    small.link = [f"{small.directory}/{name}"] if "lib" in name else []
    with pytest.raises(CompileError) as caught:
        small.load()
    assert f"{small.directory / name} is" in caught.value.remedy
    assert remedy in caught.value.remedy


def test_a_source_that_begins_as_json_does_is_not_called_so(small: SmallBuilder) -> None:
    (small.directory / "include" / "found.h").write_text("{ undeclared; }\n")
    (small.directory / "small.cpp").write_text(f'#include "found.h"\n{ENTRY}')
    with pytest.raises(CompileError, match=r"found\.h") as caught:
        small.load()
    assert "JSON" not in caught.value.remedy


# Builds ------------------------------------------------------------------------------------------


def test_an_undefined_reference_is_named(small: SmallBuilder) -> None:
    small.link = ["-Wl,-z,defs"]
    causes = ("small.cpp", "undefined reference to `acme(int)'", "in function f()")
    source = f"int acme(int);\nint f() {{ return acme(1); }}\n{ENTRY}"
    failure(small, source, CompileError, *causes, remedy="library that defines acme(int)")


def test_a_flag_that_no_compiler_knows_is_named(small: SmallBuilder) -> None:
    small.flags = ["-mno-such-flag"]
    causes = ("-mno-such-flag", "cannot compile a small program")
    failure(small, ENTRY, IncompatibleOpError, *causes, remedy="does not know this flag")
    assert not small.is_compatible()
    assert "-mno-such-flag" in str(small.error_log)


@pytest.mark.parametrize("flag", ["-Wl,--version", "-###", "-fsyntax-only"])
@pytest.mark.parametrize(("kind", "raises"), [("flags", IncompatibleOpError), ("link", LoadError)])
def test_a_flag_that_replaces_the_link_is_named(
    small: SmallBuilder, flag: str, kind: str, raises: type[AccelError]
) -> None:
    getattr(small, kind).append(flag)
    failure(small, ENTRY, raises, "wrote no", remedy="Remove flags that replace")


def test_a_missing_compiler_in_cxx_is_named(small: SmallBuilder) -> None:
    with env.scope(CXX="no-such-g++"):
        failure(small, ENTRY, IncompatibleOpError, "no-such-g", remedy="Correct CXX")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("kill -KILL $$", "ended by signal 9"),
        ("exit 3", "ended with status 3"),
        ("printf 'small.cpp:1:1: error: f\\351v\\033[31m\\n' >&2; exit 1", "small.cpp:1:1: error: f"),
    ],
    ids=["killed", "without a message", "latin-1 and control characters"],
)
def test_a_compiler_that_ends_oddly_is_described_by_its_end(
    small: SmallBuilder, tmp_path: Path, way: str, words: str
) -> None:
    warnings = "".join(f"static int unused_{number};\n" for number in range(150))
    compiler = program(tmp_path / "g++", f'case "$*" in\n*small.cpp*) {way} ;;\nesac\nexec g++ "$@"')
    (small.directory / "small.cpp").write_text(f"{warnings}{ENTRY}")
    with env.scope(CXX=str(compiler)), pytest.raises(CompileError, match=words) as caught:
        small.load()
    assert "\x1b" not in str(caught.value)
    assert "small.cpp" in caught.value.command
    assert Path(caught.value.log_path).is_file()


def test_python_headers_that_are_not_installed_are_named(
    small: SmallBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {**sysconfig.get_paths(), "include": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    builder = TorchBuilder(small.directory, small.cache)
    remedy = "apt-get install python3-dev"
    failure(builder, MODULE % "return nullptr;", IncompatibleOpError, "fatal error: Python.h", remedy=remedy)


def test_an_architecture_that_nvcc_rejects_is_named(small: SmallBuilder) -> None:
    require_program("nvcc")
    builder = KernelBuilder(small.directory, small.cache)
    builder.files = ["kernel.cu"]
    with env.scope(TORCH_CUDA_ARCH_LIST="3.5"):
        cause = "Unsupported gpu architecture 'compute_35'"
        failure(builder, "\n", IncompatibleOpError, cause, remedy="correct TORCH_CUDA_ARCH_LIST")


@pytest.fixture
def torch_for_cuda_11(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.version, "cuda", "11.8")
    torch_install.cache_clear()
    yield
    torch_install.cache_clear()


@pytest.mark.usefixtures("torch_for_cuda_11")
def test_a_toolkit_and_a_torch_that_do_not_fit_are_named(small: SmallBuilder) -> None:
    require_program("nvcc")
    builder = KernelBuilder(small.directory, small.cache)
    builder.BINDING = Binding.TORCH  # type: ignore[misc]
    builder.files = ["kernel.cu"]
    with env.scope(TORCH_CUDA_ARCH_LIST="9.0"):
        causes = ("the CUDA toolkit is ", "torch was built with CUDA 11.8")
        remedy = "Install a CUDA 11.8 toolkit and set CUDA_HOME to it"
        failure(builder, "\n", IncompatibleOpError, *causes, remedy=remedy)


# Binaries ----------------------------------------------------------------------------------------


class Unloadable(NamedTuple):
    """A source whose binary does not load, and what the error must say."""

    source: str
    causes: tuple[str, ...]
    remedy: str = ""
    builder: type[SmallBuilder] = SmallBuilder


UNLOADABLE = {
    "an undefined symbol": Unloadable(
        f"int acme(int);\nint x = acme(1);\n{ENTRY}",
        ("small.so", "undefined symbol: _Z4acmei (acme(int))"),
        "library that defines _Z4acmei (acme(int))",
    ),
    "torch's C++ symbols in a stable op": Unloadable(
        f"namespace at {{ int threads(); }}\nint f() {{ return at::threads(); }}\n{ENTRY}",
        ("stable C ABI", "at::threads()"),
        "BINDING = Binding.TORCH",
    ),
    "a crash": Unloadable(
        f"#include <csignal>\nint x = raise(SIGSEGV);\n{ENTRY}", ("small.so", "ended by SIGSEGV"), "static initializers"
    ),
    "an exception": Unloadable(
        THROW + ENTRY, ("small.so", "ended by SIGABRT", "no acme device"), "static initializers"
    ),
    "an endless start": Unloadable(
        f"#include <unistd.h>\nint x = pause();\n{ENTRY}",
        ("small.so does not load: opening it did not end within 2 s",),
        "static initializers",
    ),
    "an entry that refuses": Unloadable(
        ENTRY.replace("char*, unsigned", "char* e, unsigned").replace("0", "e[0] = '7', e[1] = 0, 1"),
        ("small.so does not load: 7",),
    ),
    "a module of another name": Unloadable(
        (MODULE % "return nullptr;").replace("PyInit_small", "PyInit_other"),
        ("small.so holds the Python module other",),
        "PyInit_small",
        TorchBuilder,
    ),
    "a module whose start raises": Unloadable(
        MODULE % 'PyErr_SetString(PyExc_RuntimeError, "no acme device:\\nplug one in"); return nullptr;',
        ("small.so does not load: RuntimeError: no acme device:", "plug one in"),
        builder=TorchBuilder,
    ),
    "a namespace of torch's own": Unloadable(
        '#include <torch/csrc/stable/library.h>\nSTABLE_TORCH_LIBRARY(aten, m) { m.def("f()->()"); }\n',
        ("small.so does not load", "the process was ended by SIG"),
        "namespace may be taken",
        TorchBuilder,
    ),
    "nothing that could be called": Unloadable(
        "int f() { return 1; }\n", ("small.so holds no Python module",), "PYBIND11_MODULE"
    ),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_what_keeps_a_binary_from_loading_is_named(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = UNLOADABLE[name]
    if name == "an endless start":
        monkeypatch.setattr("op_builder.engine.try_load.TIMEOUT_S", 2.0)
    builder = case.builder(small.directory, small.cache)
    failure(builder, case.source, LoadError, *case.causes, remedy=case.remedy)


def test_a_library_found_by_the_linker_alone_is_named(small: SmallBuilder, tmp_path: Path) -> None:
    shared_library(tmp_path / "libacme.so", "int acme() { return 1; }\n")
    small.link = [f"-L{tmp_path}", "-lacme"]
    causes = ("small.so does not load", "libacme.so: cannot open shared object file")
    failure(small, f"int acme();\nint x = acme();\n{ENTRY}", LoadError, *causes, remedy="-Wl,-rpath,DIR")
