"""Small real ops for the builder's tests: written into a temporary directory, compiled for real."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder import Binding, CUDAOpBuilder, OpBuilder
from op_builder.cache.store import Cache
from op_builder.system.outcomes import CheckOutcome

STABLE_SOURCE = """
#include "torch_c/boxed.h"
#include "torch_c/library.h"
#include "amount.h"

static void add_(accel::Tensor x) {
  float* data = static_cast<float*>(x.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) data[i] += AMOUNT;
}
static void nothing(accel::Tensor) {}
static void define(accel::Library& m) { m.def("add_(Tensor(a!) x) -> ()"); }
static void cpu(accel::Library& m) { m.impl("add_", ACCEL_BOX(&add_)); }
static void meta(accel::Library& m) { m.impl("add_", ACCEL_BOX(&nothing)); }
ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", cpu}, {"Meta", meta})
"""

# What makes a library one of Binding.STABLE, without the second that torch's headers take.
ENTRY = """
extern "C" __attribute__((visibility("default"))) int accel_register_library(const char*, char*, unsigned long) {
  return 0;
}
"""
# The builder of such an op in another package.
OWN_BUILDER = """
from op_builder import Binding, OpBuilder
class OwnBuilder(OpBuilder):
    NAME = "own"
    BINDING = Binding.STABLE
    def sources(self):
        return ["own.cpp"]
"""
# A Python module whose value() returns VALUE, without torch's headers, which take half a minute to compile.
MODULE = """
#include <Python.h>
static PyObject* value(PyObject*, PyObject*) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "m", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
#define JOINED(name) PyInit_##name
#define EXPANDED(name) JOINED(name)
PyMODINIT_FUNC EXPANDED(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""


# A builder in another package, of STABLE_SOURCE.
ACME_ADD = """
from op_builder import Binding, CPUOpBuilder

class AcmeAddBuilder(CPUOpBuilder):
    NAME = "acme_add"
    BUILD_VAR = "ACCEL_BUILD_ACME_SUM"
    BINDING = Binding.STABLE

    def sources(self):
        return ["kernels/add.cpp"]

    def include_paths(self):
        return ["csrc", "kernels"]

    def cxx_args(self):
        return ["-O0"]
"""


class SmallBuilder(OpBuilder):
    """An op of one source in ``directory``; every part can be replaced by a test."""

    NAME = "small"
    BUILD_VAR = "ACCEL_BUILD_SMALL"
    BINDING = Binding.STABLE

    def __init__(self, directory: Path, cache: Cache) -> None:
        super().__init__(self.NAME)
        self.directory = directory
        self.cache = cache  # type: ignore[misc]
        self.files = ["small.cpp"]
        self.flags = ["-O0"]  # compiles in a quarter of the time
        self.link: list[str] = []

    def sources(self) -> list[str]:
        return [str(self.directory / name) for name in self.files]

    def include_paths(self) -> list[str]:
        return ["csrc", str(self.directory / "include")]

    def cxx_args(self) -> list[str]:
        return self.flags

    def extra_ldflags(self) -> list[str]:
        return self.link


class TextBuilder(OpBuilder):
    """An op of texts."""

    def __init__(
        self, name: str, texts: dict[str, str], cache: Cache | None = None, *, include_dirs: Sequence[str] = ()
    ) -> None:
        super().__init__(name)
        if cache is not None:
            self.cache = cache  # type: ignore[misc]
        self.texts = texts
        self.include_dirs = list(include_dirs)
        self.flags: list[str] = []

    def sources(self) -> list[str]:
        return []

    def source_texts(self) -> dict[str, str]:
        return self.texts

    def include_paths(self) -> list[str]:
        return self.include_dirs

    def cxx_args(self) -> list[str]:
        return self.flags


class TorchBuilder(SmallBuilder):
    """One on torch's C++ API, or a Python module."""

    BINDING = Binding.TORCH


class KernelBuilder(CUDAOpBuilder, SmallBuilder):
    """An op with a kernel that is only to be compiled: it asks for no device."""

    def load_checks(self) -> list[CheckOutcome]:
        return []


def make_small(directory: Path, cache: Cache, *, amount: str = "1.0f", source: str = STABLE_SOURCE) -> SmallBuilder:
    (directory / "include").mkdir(parents=True)
    # A content of its own for each: what is open in this process already is taken, wherever it came from.
    (directory / "small.cpp").write_text(f"{source}\n// {uuid.uuid4()}\n")
    (directory / "include" / "amount.h").write_text(f'#include "nested.h"\n#define AMOUNT ({amount} + NESTED)\n')
    (directory / "include" / "nested.h").write_text("#define NESTED 0.0f\n")
    return SmallBuilder(directory, cache)


def copied(built: Path, directory: Path) -> tuple[Path, Cache]:
    """What a ``built`` directory holds, sources and cache, in a place of its own."""
    shutil.copytree(built, directory, dirs_exist_ok=True)
    return directory / "op", Cache(directory / "cache")


def added(op: Any) -> float:
    """What a small op adds to a tensor."""
    x = torch.zeros(3)
    op.add_(x)
    return x[0].item()


def replace_content(path: Path, content: bytes) -> None:
    """Give a file another content as a new file: one that this process has mapped must not change under it,
    or the process ends with a bus error wherever it next touches the library."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


# Fixtures, which conftest.py of a directory imports --------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def small(tmp_path: Path, cache: Cache) -> SmallBuilder:
    """A builder of an op that adds 1 to a tensor, with a header that says how much."""
    return make_small(tmp_path / "op", cache)
