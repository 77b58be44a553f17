"""Builds that fail for a reason we put there: the true cause stands in the last ten lines.

Each failure is a real one, of the real compiler, linker or nvcc, and is met the way a user meets it: by ``load()``.
"""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from op_builder import Binding
from op_builder.cache.store import Cache
from op_builder.errors import CompileError, IncompatibleOpError
from op_builder.system.torch_install import torch_install
from tests.support.seeds import ENTRY, MODULE, KernelBuilder, Seed, TorchKernelBuilder, fails, table

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")

WARNINGS = "".join(f"static int unused_{number};\n" for number in range(150))


def compiler(for_the_op: str) -> dict[str, str]:
    """A g++ that is the real one, but for the op's source."""
    return {"bin/g++": f'#!/bin/sh\ncase "$*" in\n*small.cpp*) {for_the_op} ;;\nesac\nexec g++ "$@"\n'}


OWN_CXX = {"CXX": "$HERE/bin/g++"}

FAILURES = {
    "an undefined reference": Seed(
        {"small.cpp": f"int acme(int);\nint f() {{ return acme(1); }}\n{ENTRY}"},
        ("small.cpp", "undefined reference to `acme(int)'", "in function f()"),
        "library that defines acme(int)",
        link=("-Wl,-z,defs",),
    ),
    "a message in latin-1 with control characters": Seed(
        {"small.cpp": ENTRY, **compiler("printf 'small.cpp:1:1: error: f\\351v\\033[31m\\n' >&2; exit 1")},
        ("small.cpp:1:1: error: f",),
        environment=OWN_CXX,
    ),
    "a flag that no compiler knows": Seed(
        {"small.cpp": ENTRY},
        ("-mno-such-flag", "cannot compile a small program"),
        "does not know this flag",
        flags=("-mno-such-flag",),
        raises=IncompatibleOpError,
    ),
    "a CXX that is not there": Seed(
        {"small.cpp": ENTRY},
        ("CXX='no-such-g++'",),
        "Correct CXX",
        environment={"CXX": "no-such-g++"},
        raises=IncompatibleOpError,
    ),
}


@table(FAILURES)
def test_the_cause_of_a_failed_build_is_named(seed: Seed, tmp_path: Path, cache: Cache) -> None:
    fails(seed, seed.builder(tmp_path / "op", cache))


@pytest.mark.parametrize(("way", "words"), [("kill -KILL $$", "ended by signal 9"), ("exit 3", "ended with status 3")])
def test_a_compiler_that_ends_without_a_message_is_described_by_its_end(
    way: str, words: str, tmp_path: Path, cache: Cache
) -> None:
    seed = Seed({"small.cpp": f"{WARNINGS}{ENTRY}", **compiler(way)}, environment=OWN_CXX)
    with seed.surroundings(tmp_path / "op"), pytest.raises(CompileError, match=words) as caught:
        seed.builder(tmp_path / "op", cache).load()
    assert "small.cpp" in caught.value.command
    assert Path(caught.value.log_path).is_file()


def test_python_headers_that_are_not_installed_are_named(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {**sysconfig.get_paths(), "include": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    seed = Seed(
        {"small.cpp": MODULE % "return nullptr;"},
        ("fatal error: Python.h",),
        "apt-get install python3-dev",
        binding=Binding.TORCH,
        raises=IncompatibleOpError,
    )
    fails(seed, seed.builder(tmp_path / "op", cache))


# nvcc --------------------------------------------------------------------------------------------

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")

KERNELS = {
    "an architecture that nvcc does not know": Seed(
        {"kernel.cu": "\n"},
        ("Unsupported gpu architecture 'compute_35'",),
        "correct TORCH_CUDA_ARCH_LIST",
        environment={"TORCH_CUDA_ARCH_LIST": "3.5"},
        raises=IncompatibleOpError,
    ),
    "a host compiler too new for nvcc": Seed(
        {"kernel.cu": "\n", "bin/g++": '#!/bin/sh\nexec g++ -U__GNUC__ -D__GNUC__=99 "$@"\n'},
        ("unsupported GNU version! gcc versions later than",),
        "nvcc and the host compiler are incompatible: set CXX to gcc",
        environment=OWN_CXX,
        raises=IncompatibleOpError,
    ),
}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A cache that remembers for all tests of kernels that nvcc works: asking it takes seconds."""
    return Cache(tmp_path_factory.mktemp("probed") / "cache")


@needs_nvcc
@table(KERNELS)
def test_what_nvcc_rejects_is_named(seed: Seed, tmp_path: Path, probed: Cache) -> None:
    seed.write(tmp_path)
    fails(seed, KernelBuilder(tmp_path, probed))


@pytest.fixture
def torch_for_cuda_11(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.version, "cuda", "11.8")
    torch_install.cache_clear()
    yield
    torch_install.cache_clear()


@needs_nvcc
@pytest.mark.usefixtures("torch_for_cuda_11")
def test_a_toolkit_and_a_torch_that_do_not_fit_are_named(tmp_path: Path, probed: Cache) -> None:
    seed = Seed(
        {"kernel.cu": "\n"},
        ("the CUDA toolkit is ", "torch was built with CUDA 11.8"),
        "Install a CUDA 11.8 toolkit and set CUDA_HOME to it",
        raises=IncompatibleOpError,
    )
    seed.write(tmp_path)
    fails(seed, TorchKernelBuilder(tmp_path, probed))
