"""Existing builder classes with each binding style.

They follow the conventions of other packages: class attributes, sources named from the package's root, flags from the
base class, an ``is_compatible()`` that probes and warns. Only the import line was changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from op_builder.builder.base import OpBuilder
from op_builder.errors import IncompatibleOpError, LoadError
from tests.support.builds import row_of
from tests.support.compilers import needs_gxx, shared_library
from tests.support.foreign_package import importable, load_module, output_of, write_package
from tests.support.small_ops import MODULE, TextBuilder

pytestmark = pytest.mark.usefixtures("own_cache")

BUILDERS = """
import os

from op_builder.builder import CPUOpBuilder, OpBuilder, TorchCPUOpBuilder


class ScaleBuilder(TorchCPUOpBuilder):
    BUILD_VAR = "ACME_BUILD_SCALE"
    NAME = "scale"

    def __init__(self):
        super().__init__(name=self.NAME)

    def absolute_name(self):
        return f"vendor_ops.kernels.{self.NAME}_op"

    def sources(self):
        return ["csrc/scale/scale.cpp", "csrc/common/factor.cpp"]

    def include_paths(self):
        return ["csrc/includes", ""]

    def cxx_args(self):
        args = super().cxx_args()
        args += ["-O2", self.cpu_arch(), self.simd_width(), ""]
        return args + self.version_dependent_macros()

    def extra_ldflags(self):
        return ["-fopenmp", "-lm"]

    def libraries_args(self):
        return ["-lpthread"]

    def is_compatible(self, verbose=False):
        if not self.command_exists(["no-such-command", "sh"]):
            self.warning("sh is required")
            return False
        if not self.has_function("pthread_create", ("pthread",)):
            self.warning("libpthread has no pthread_create")
            return False
        return super().is_compatible(verbose)


class PlainBuilder(CPUOpBuilder):
    BUILD_VAR = "ACME_BUILD_PLAIN"
    NAME = "plain"

    def __init__(self, name=None):
        name = self.NAME if name is None else name
        OpBuilder.__init__(self, name)

    def absolute_name(self):
        return "vendor_ops.kernels.plain_op"

    def sources(self):
        return ["csrc/plain/plain.c.cpp"]

    def include_paths(self):
        return ["csrc/includes"]

    def cxx_args(self):
        return ["-O3", "-g", "-Wno-reorder", self.get_cuda_compile_flag()]


class LibraryBuilder(OpBuilder):
    BUILD_VAR = "ACME_BUILD_LIBRARY"
    NAME = "vendor_library"

    def __init__(self):
        super().__init__(self.NAME)

    def absolute_name(self):
        return f"vendor_ops.{self.NAME}"

    def sources(self):
        return [self.deepspeed_src_path("csrc/library/library.cpp")]

    def include_paths(self):
        return [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "csrc", "includes")]


class NeedyBuilder(PlainBuilder):
    BUILD_VAR = "ACME_BUILD_NEEDY"
    NAME = "needy"

    def is_compatible(self, verbose=False):
        if not self.has_function("acme_submit", ("acme_missing",), verbose=verbose):
            self.warning("needs libacme; install the acme-dev package")
            return False
        return super().is_compatible(verbose)
"""

# Python.h alone.
PLAIN = """
#include <Python.h>
#include "amount.h"

static PyObject* add(PyObject*, PyObject* argument) {
  const double value = PyFloat_AsDouble(argument);
  if (value == -1.0 && PyErr_Occurred()) return nullptr;
  return PyFloat_FromDouble(value + AMOUNT);
}
static PyMethodDef methods[] = {{"add", add, METH_O, "Add an amount."}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plain_op", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_plain_op() { return PyModule_Create(&definition); }
"""


LIBRARY = """
#include <torch/library.h>
#include "amount.h"

static at::Tensor add(const at::Tensor& x) { return x.add(AMOUNT); }
TORCH_LIBRARY(acme_library, m) { m.def("add(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(acme_library, CPU, m) { m.impl("add", &add); }
"""

SCALE = """
#include <torch/extension.h>
#include <omp.h>
#include "factor.h"
#include "amount.h"

#if !defined(__AVX512__) && !defined(__AVX256__) && !defined(__SCALAR__)
#error "simd_width() gave no define"
#endif
#if !defined(VERSION_GE_1_5) || !defined(__DISABLE_CUDA__)
#error "version_dependent_macros() or get_cuda_compile_flag() gave no define"
#endif

static torch::Tensor scale(const torch::Tensor& x, double by) { return x * by * factor(); }

struct Meter {
  int64_t calls = 0;
  int64_t call() { return ++calls; }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scale", &scale, "Scale a tensor", py::arg("x"), py::arg("by") = 1.0);
  m.def("threads", [] { return omp_get_max_threads(); });
  py::class_<Meter>(m, "Meter", py::module_local()).def(py::init<>()).def("call", &Meter::call);
}
"""

FILES = {
    "builders/foreign.py": BUILDERS,
    "csrc/plain/plain.c.cpp": PLAIN,
    "csrc/library/library.cpp": LIBRARY,
    "csrc/scale/scale.cpp": SCALE,
    "csrc/common/factor.cpp": '#include "factor.h"\ndouble factor() { return 2.0; }\n',
    "csrc/includes/factor.h": "double factor();\n",
    "csrc/includes/amount.h": "#define AMOUNT 1.0f\n",
}


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[ModuleType]:
    """The module with the foreign builders, its package new for each test."""
    write_package(tmp_path, "vendor_ops", FILES)
    with importable(tmp_path, "vendor_ops"):
        yield load_module("vendor_ops.builders.foreign")


@pytest.mark.parametrize(
    ("class_name", "kind", "check"),
    [
        ("PlainBuilder", "python", "assert op.add(1.5) == 2.5 and op.__name__ == 'plain_op'"),
        pytest.param(
            *("LibraryBuilder", "torch_library", "assert op.add(torch.zeros(2)).tolist() == [1.0, 1.0]"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("ScaleBuilder", "python"),
            "assert op.scale(torch.ones(1), by=3.0).item() == 6 and op.threads() >= 1 and op.Meter().call() == 1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_binding_style_loads_and_the_second_load_hits(
    vendor: Any, tmp_path: Path, class_name: str, kind: str, check: str
) -> None:
    builder = getattr(vendor, class_name)()
    assert builder.is_compatible(verbose=True), builder.error_log
    op = builder.load(verbose=False)
    exec(check, {"op": op, "torch": torch})
    (entry,) = builder.cache.entries(builder.name)
    assert entry.manifest.kind == kind
    assert entry.manifest.namespaces == (("acme_library",) if kind == "torch_library" else ())
    assert type(builder)().load() is op
    # A new process without a compiler gets it from the cache.
    code = f"import torch\nfrom vendor_ops.builders.foreign import {class_name}\nop = {class_name}().load()\n{check}"
    output_of("-c", code, paths=[tmp_path], PATH=str(tmp_path), ACCEL_JIT="0")


def test_a_builders_warning_is_the_reason_in_report_and_load(vendor: Any, caplog: pytest.LogCaptureFixture) -> None:
    builder = vendor.NeedyBuilder()
    row = row_of(builder)
    assert not row.compatible
    assert "install the acme-dev package" in row.reason
    with pytest.raises(IncompatibleOpError, match="acme-dev"):
        vendor.NeedyBuilder().load()
    assert "needs libacme" in caplog.text
    assert builder.cache.entries() == []


def test_a_builder_whose_methods_raise_is_reported() -> None:
    class Broken(OpBuilder):
        NAME = "broken"

        def sources(self) -> list[str]:
            raise KeyError("CUDA_HOME")

    builder = Broken()
    assert not builder.is_compatible()
    assert "KeyError: 'CUDA_HOME'" in (builder.error_log or "")
    assert "its builder fails: KeyError: 'CUDA_HOME'" in row_of(builder).reason
    with pytest.raises(IncompatibleOpError, match="KeyError") as caught:
        builder.load()
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.remedy


def test_the_base_class_has_the_helpers_of_existing_builders(vendor: Any) -> None:
    builder = vendor.ScaleBuilder()
    assert isinstance(builder, OpBuilder)
    assert (builder.name, builder.build_for_cpu, builder.jit_mode, builder.enable_bf16) == ("scale", True, False, False)
    assert builder.error_log is None
    assert "-D__DISABLE_CUDA__" in builder.cxx_args()
    assert builder.strip_empty_entries(["", "-a", ""]) == ["-a"]
    assert builder.command_exists("sh") is True
    assert builder.command_exists("no-such-command") is False
    assert Path(builder.deepspeed_src_path("csrc/scale/scale.cpp")).is_file()
    assert builder.is_rocm_pytorch() is (torch.version.hip is not None)
    assert builder.hipify_extension() is None
    assert builder.sycl_extension() is None


@needs_gxx
def test_a_function_that_links_is_found_also_in_a_named_directory(vendor: Any, tmp_path: Path) -> None:
    shared_library(tmp_path / "libacme.so", 'extern "C" int acme_submit() { return 0; }\n')
    builder = vendor.PlainBuilder()
    assert builder.has_function("printf", ("m", "pthread"))
    assert not builder.has_function("acme_submit", ("acme",))
    assert builder.has_function("acme_submit", ("acme",), library_dirs=(str(tmp_path),))
    assert not builder.has_function("acme_cancel", ["acme"], [str(tmp_path)])


# What builder classes written for DeepSpeed do that others do not -------------------------------------


def answer(declaration: str = "", value: str = "42", include_dirs: Sequence[str] = ()) -> TextBuilder:
    text = f"{declaration}\n#define VALUE {value}\n{MODULE}"
    return TextBuilder("answer", {"answer.cpp": text}, include_dirs=include_dirs)


def test_an_include_directory_that_does_not_exist_is_ignored_and_reported(tmp_path: Path) -> None:
    builder = answer(value="7", include_dirs=[str(tmp_path), "csrc/absent", str(tmp_path / "absent")])
    assert builder.plan().include_dirs == (tmp_path,)
    row = row_of(builder)
    assert row.compatible
    assert f"do not exist are ignored: csrc/absent, {tmp_path / 'absent'}" in row.reason
    assert builder.load().value() == 7


def test_the_path_of_a_missing_source_is_where_it_would_be() -> None:
    builder = type("HereBuilder", (TextBuilder,), {"__module__": __name__})("here", {})
    assert builder.deepspeed_src_path("absent.cpp") == str(Path(__file__).parent / "absent.cpp")
    assert builder.deepspeed_src_path("/absent.cpp") == "/absent.cpp"
    assert builder.deepspeed_src_path(Path(__file__).name) == __file__


def test_is_compatible_may_use_cpp_extension_without_its_import() -> None:
    output_of("-m", "tests.support.uses_cpp_extension")


@needs_gxx
def test_a_symbol_that_this_process_offers_to_all_libraries_is_found(tmp_path: Path) -> None:
    builder = answer('extern "C" int acme_value(void);', "acme_value()")
    with pytest.raises(LoadError, match="acme_value"):
        builder.load()
    library = shared_library(tmp_path / "libacme_offered.so", 'extern "C" int acme_value() { return 9; }\n')
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    assert builder.load().value() == 9
