"""Binaries that do not load, for a reason we put there: the true cause stands in the last ten lines."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import Binding, env
from op_builder.cache.store import Cache
from op_builder.errors import LoadError
from op_builder.load import resolver
from tests.support.compilers import wait_until
from tests.support.foreign_package import ROOT
from tests.support.seeds import ENTRY, MODULE, Seed, end_of_traceback, fails, table

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")

THROW = """#include <stdexcept>
int ask() { throw std::runtime_error("no acme device"); }
int x = ask();
"""

LOADS = {
    "an undefined symbol": Seed(
        {"small.cpp": f"int acme(int);\nint x = acme(1);\n{ENTRY}"},
        ("small.so", "undefined symbol: _Z4acmei (acme(int))"),
        "library that defines _Z4acmei (acme(int))",
        raises=LoadError,
    ),
    "a crash": Seed(
        {"small.cpp": f"#include <csignal>\nint x = raise(SIGSEGV);\n{ENTRY}"},
        ("small.so", "ended by SIGSEGV"),
        "static initializers",
        raises=LoadError,
    ),
    "an exception": Seed(
        {"small.cpp": THROW + ENTRY},
        ("small.so", "ended by SIGABRT", "no acme device"),
        "static initializers",
        raises=LoadError,
    ),
    "an exit that says all is well": Seed(
        {"small.cpp": f"#include <cstdlib>\nint x = (exit(0), 1);\n{ENTRY}"},
        ("small.so", "ended the process with status 0"),
        "static initializers",
        raises=LoadError,
    ),
    "an entry that refuses": Seed(
        {"small.cpp": ENTRY.replace("char*, unsigned", "char* e, unsigned").replace("0", "e[0] = '7', e[1] = 0, 1")},
        ("small.so does not load: 7",),
        raises=LoadError,
    ),
    "a module of another name": Seed(
        {"small.cpp": (MODULE % "return nullptr;").replace("PyInit_small", "PyInit_other")},
        ("small.so holds the Python module other",),
        "PyInit_small",
        binding=Binding.TORCH,
        raises=LoadError,
    ),
    "a namespace of torch's own": Seed(
        {"small.cpp": '#include <torch/csrc/stable/library.h>\nSTABLE_TORCH_LIBRARY(aten, m) { m.def("f()->()"); }\n'},
        ("small.so does not load", "the process was ended by SIG"),
        "namespace may be taken",
        binding=Binding.TORCH,
        raises=LoadError,
    ),
    "nothing that could be called": Seed(
        {"small.cpp": "int f() { return 1; }\n"},
        ("small.so holds no Python module",),
        "PYBIND11_MODULE",
        raises=LoadError,
    ),
}


@table(LOADS)
def test_what_keeps_a_binary_from_loading_is_named(seed: Seed, tmp_path: Path, cache: Cache) -> None:
    fails(seed, seed.builder(tmp_path / "op", cache))


RAISES = MODULE % 'PyErr_SetString(PyExc_RuntimeError, "no acme device:\\nplug one in"); return nullptr;'
REGISTERS = """#include <torch/csrc/stable/library.h>
STABLE_TORCH_LIBRARY_FRAGMENT(acme_raising, m) { m.def("f() -> ()"); }
"""


@pytest.mark.parametrize("source", [RAISES, REGISTERS + RAISES], ids=["alone", "with ops of torch"])
def test_a_module_whose_start_raises_is_described_by_what_it_raises(source: str, tmp_path: Path, cache: Cache) -> None:
    words = ("small.so does not load: RuntimeError: no acme device:", "plug one in")
    seed = Seed({"small.cpp": source}, words, binding=Binding.TORCH, raises=LoadError)
    fails(seed, seed.builder(tmp_path / "op", cache))


def test_a_module_is_tried_with_the_path_of_this_process(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = """
  if (PyImport_ImportModule("acme_settings") == nullptr) return nullptr;
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "small", nullptr, -1, nullptr};
  return PyModule_Create(&definition);"""
    seed = Seed({"small.cpp": MODULE % start}, binding=Binding.TORCH)
    (tmp_path / "acme_settings.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert seed.builder(tmp_path / "op", cache).load().__name__.endswith("small")


def test_a_binary_that_waits_for_ever_when_opened_is_stopped_and_named(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("op_builder.engine.try_load._TIMEOUT_S", 2.0)
    seed = Seed(
        {"small.cpp": f"#include <unistd.h>\nint x = pause();\n{ENTRY}"},
        ("small.so does not load: opening it did not end within 2 s",),
        "static initializers",
        raises=LoadError,
    )
    fails(seed, seed.builder(tmp_path / "op", cache))


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A shared library in a directory that the dynamic loader does not search."""
    library = tmp_path / "lib" / "libacme.so"
    library.parent.mkdir()
    (tmp_path / "acme.cpp").write_text("int acme() { return 1; }\n")
    command = ["g++", "-shared", "-fPIC", str(tmp_path / "acme.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


USES_ACME = f"int acme();\nint x = acme();\n{ENTRY}"


def test_a_library_found_by_the_linker_alone_is_named(acme: Path, tmp_path: Path, cache: Cache) -> None:
    seed = Seed(
        {"small.cpp": USES_ACME},
        ("small.so does not load", "libacme.so: cannot open shared object file"),
        "-Wl,-rpath,DIR",
        link=(f"-L{acme.parent}", "-lacme"),
        raises=LoadError,
    )
    fails(seed, seed.builder(tmp_path / "op", cache))


def test_a_library_that_is_gone_since_the_build_is_named(acme: Path, tmp_path: Path, cache: Cache) -> None:
    link = (f"-L{acme.parent}", f"-Wl,-rpath,{acme.parent}", "-lacme")
    builder = Seed({"small.cpp": USES_ACME}, link=link).builder(tmp_path / "op", cache)
    resolver.compile_now(resolver.Request.of(builder))
    acme.unlink()
    with pytest.raises(LoadError) as caught:
        builder.load()
    assert "libacme.so: cannot open shared object file" in end_of_traceback(caught.value)
    assert "missing library, install it" in end_of_traceback(caught.value)


def test_a_module_whose_start_wants_torch_imported_is_tried_with_it(tmp_path: Path, cache: Cache) -> None:
    start = """
  if (PyDict_GetItemString(PyImport_GetModuleDict(), "torch") == nullptr) raise(SIGSEGV);
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "small", nullptr, -1, nullptr};
  return PyModule_Create(&definition);"""
    seed = Seed({"small.cpp": "#include <csignal>\n" + MODULE % start}, binding=Binding.TORCH)
    builder = seed.builder(tmp_path / "op", cache)
    assert builder.load().__name__.endswith("small")
    (entry,) = cache.entries()
    assert entry.manifest.check.endswith("with torch")


LOADS_FOR_EVER = """
from pathlib import Path
from op_builder.cache.store import Cache
from tests.support.small_ops import make_small
source = '#include <fcntl.h>\\n#include <unistd.h>\\nint f = creat("{opened}", 0600);\\nint x = pause();\\n' + {entry!r}
make_small(Path({place!r}), Cache(Path({cache!r})), source=source).load()
"""


def test_what_waits_when_opened_ends_with_the_process_that_tries_it(tmp_path: Path, cache: Cache) -> None:
    opened, place = tmp_path / "opened", tmp_path / "op"
    code = LOADS_FOR_EVER.format(opened=opened, entry=ENTRY, place=str(place), cache=str(cache.root))
    loading = subprocess.Popen([sys.executable, "-c", code], env=env.child_environment(PYTHONPATH=str(ROOT)))
    wait_until(lambda: opened.exists() or loading.poll() is not None)
    assert trying(cache), "it waits in a process of its own"
    loading.kill()
    loading.wait()
    wait_until(lambda: not trying(cache))


def trying(cache: Cache) -> list[Path]:
    """Processes that were given a binary of the cache."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(word.startswith(f"{cache.home}/staging/") and word.endswith("/small.so") for word in words):
                found.append(process)
    return found
