"""Binaries that do not load, for a reason we put there: the true cause stands in the last ten lines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from op_builder import Binding
from op_builder.cache.store import Cache
from op_builder.errors import LoadError
from tests.support.compilers import shared_library
from tests.support.seeds import ENTRY, MODULE, Seed, fails, table

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


def test_a_module_whose_start_raises_is_described_by_what_it_raises(tmp_path: Path, cache: Cache) -> None:
    words = ("small.so does not load: RuntimeError: no acme device:", "plug one in")
    seed = Seed({"small.cpp": RAISES}, words, binding=Binding.TORCH, raises=LoadError)
    fails(seed, seed.builder(tmp_path / "op", cache))


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


def test_a_library_found_by_the_linker_alone_is_named(tmp_path: Path, cache: Cache) -> None:
    shared_library(tmp_path / "libacme.so", "int acme() { return 1; }\n")
    seed = Seed(
        {"small.cpp": f"int acme();\nint x = acme();\n{ENTRY}"},
        ("small.so does not load", "libacme.so: cannot open shared object file"),
        "-Wl,-rpath,DIR",
        link=(f"-L{tmp_path}", "-lacme"),
        raises=LoadError,
    )
    fails(seed, seed.builder(tmp_path / "op", cache))
