"""What builder classes written for DeepSpeed do that others do not."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from op_builder.builder.base import CPUOpBuilder
from op_builder.errors import LoadError
from op_builder.report.collect import op_row
from tests.support.foreign_package import run_python, write_package

# A Python module without torch's headers compiles in a second.
MODULE = """
#include <Python.h>
%s
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(%s); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "op", nullptr, -1, methods};
#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)(void) { return PyModule_Create(&definition); }
"""


class AnswerBuilder(CPUOpBuilder):
    NAME = "answer"
    BUILD_VAR = "ACME_BUILD_ANSWER"

    def __init__(self, declaration: str = "", value: str = "42") -> None:
        super().__init__()
        self.text = MODULE % (declaration, value)

    def sources(self) -> list[str]:
        return []

    def source_texts(self) -> dict[str, str]:
        return {"answer.cpp": self.text}


def test_an_include_directory_that_does_not_exist_is_ignored_and_reported(tmp_path: Path) -> None:
    class WithIncludes(AnswerBuilder):
        def include_paths(self) -> list[str]:
            return [str(tmp_path), "csrc/absent", str(tmp_path / "absent")]

    builder = WithIncludes(value="7")
    assert builder.plan().include_dirs == (tmp_path,)
    row = op_row(builder)
    assert row.compatible
    assert f"do not exist are ignored: csrc/absent, {tmp_path / 'absent'}" in row.reason
    assert builder.load().answer() == 7


def test_the_path_of_a_missing_source_is_where_it_would_be() -> None:
    builder = AnswerBuilder()
    assert builder.deepspeed_src_path("absent.cpp") == str(Path(__file__).parent / "absent.cpp")
    assert builder.deepspeed_src_path("/absent.cpp") == "/absent.cpp"
    assert builder.deepspeed_src_path(Path(__file__).name) == __file__


def test_is_compatible_may_use_cpp_extension_without_its_import(tmp_path: Path) -> None:
    text = """
        import torch
        from op_builder.builder import CPUOpBuilder

        class ToolkitBuilder(CPUOpBuilder):
            NAME = "toolkit"

            def sources(self):
                return []

            def is_compatible(self, verbose=False):
                return torch.utils.cpp_extension.CUDA_HOME is None or True
    """
    write_package(tmp_path, "acme_cuda", {"toolkit.py": textwrap.dedent(text)})
    code = """
        import sys
        from acme_cuda.toolkit import ToolkitBuilder
        builder = ToolkitBuilder()
        assert "setuptools" not in sys.modules
        assert builder.is_compatible()
        from torch.utils.cpp_extension import BuildExtension
        assert BuildExtension.__name__ == "BuildExtension"
    """
    done = run_python(textwrap.dedent(code), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
def test_a_symbol_that_this_process_offers_to_all_libraries_is_found(tmp_path: Path) -> None:
    builder = AnswerBuilder('extern "C" int acme_value(void);', "acme_value()")
    with pytest.raises(LoadError, match="acme_value"):
        builder.load()
    source, library = tmp_path / "offered.c", tmp_path / "libacme_offered.so"
    source.write_text("int acme_value(void) { return 9; }\n")
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", source, "-o", library], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    assert builder.load().answer() == 9
