"""``load_inline``: text becomes a loaded op."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import op_builder
from op_builder import env
from op_builder.builder.inline import InlineBuilder, InlineCUDABuilder, _docs, _literal, load_inline
from op_builder.errors import AccelError, CompileError, IncompatibleOpError
from tests.support.foreign_package import run_python

# Small texts that include no header of torch's, which takes half a minute to read.
MODULE = """
#include <Python.h>
#include <cmath>
static PyObject* value(PyObject*, PyObject*) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_NAME() { return PyModule_Create(&definition); }
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "cache")):
        yield


def module(name: str) -> str:
    return MODULE.replace("NAME", name)


def test_text_that_binds_itself_is_compiled_as_it_is() -> None:
    loaded = load_inline("plain", module("plain"), extra_cflags=["-DVALUE=7"])
    assert loaded.value() == 7


def test_the_package_offers_it() -> None:
    assert op_builder.load_inline is load_inline


def test_the_same_text_gives_the_same_object_and_another_text_a_new_one() -> None:
    first = load_inline("again", module("again"), extra_cflags=["-DVALUE=1"])
    assert load_inline("again", module("again"), extra_cflags=["-DVALUE=1"]) is first
    second = load_inline("again", module("again").replace("VALUE", "2"))
    assert (first.value(), second.value()) == (1, 2)


@pytest.mark.slow
def test_a_changed_pybind11_module_is_another_module_in_the_same_process() -> None:
    text = '#include <pybind11/pybind11.h>\nPYBIND11_MODULE(edited, m) { m.def("value", [] { return VALUE; }); }'
    first, second = (load_inline("edited", text, extra_cflags=["-O0", f"-DVALUE={value}"]) for value in (1, 2))
    assert (first.value(), second.value()) == (1, 2)


def test_a_second_process_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_inline("kept", module("kept"), extra_cflags=["-DVALUE=3"])
    for path in (tmp_path / "cache").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr("op_builder.load.loader._entries", {})
    with env.scope(ACCEL_JIT="0", PATH="/nowhere"):
        assert load_inline("kept", module("kept"), extra_cflags=["-DVALUE=3"]).value() == 3


def test_texts_are_one_file_and_errors_name_their_own_lines() -> None:
    with pytest.raises(CompileError) as caught:
        load_inline("broken", [module("broken").replace("VALUE", "1"), "\nint wrong = nothing;\n"])
    assert caught.value.diagnostic.startswith("cpp_sources[1]:2:")
    assert "nothing" in caught.value.diagnostic


def test_own_headers_are_found_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "value.h").write_text("#define VALUE 11\n")
    monkeypatch.chdir(tmp_path)
    text = '#include "value.h"\n' + module("headed")
    assert load_inline("headed", text, extra_include_paths=["include"]).value() == 11
    (tmp_path / "include" / "value.h").write_text("#define VALUE 12\n")
    assert load_inline("headed", text, extra_include_paths=["include"]).value() == 12


def test_a_stable_library_in_text() -> None:
    text = """
        #include <torch/csrc/stable/library.h>
        #include <torch/csrc/stable/tensor.h>
        static int64_t three() { return 3; }
        STABLE_TORCH_LIBRARY(inline_stable, m) { m.def("three() -> int"); }
        STABLE_TORCH_LIBRARY_IMPL(inline_stable, CompositeExplicitAutograd, m) { m.impl("three", TORCH_BOX(&three)); }
    """
    assert load_inline("stable", text).three() == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "no-name", "cpp_sources": "int x;"}, "'no-name'"),
        ({"name": "class", "cpp_sources": "int x;"}, "'class'"),
        ({"name": "good", "cpp_sources": "int x;", "functions": "f()"}, r"'f\(\)'"),
        ({"name": "empty"}, "no text"),
        ({"name": "empty", "cpp_sources": ["", "\n"]}, "no text"),
    ],
    ids=["name", "keyword", "function", "nothing", "blank"],
)
def test_bad_arguments_are_named(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(AccelError, match=said):
        load_inline(**arguments)  # type: ignore[arg-type]


def test_docstrings_become_literals_of_one_line() -> None:
    assert _literal('a "quoted"\nline \\ of 3') == r'"a \042quoted\042\012line \134 of 3"'


def test_text_beyond_ascii_compiles_whatever_the_locale(tmp_path: Path) -> None:
    text = "// déjà vu\n" + module("accents")
    load = f"load_inline('accents', {text!a}, extra_cflags=['-DVALUE=4'])"
    code = f"from op_builder import load_inline; print({load}.value())"
    told = run_python(code, tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert told.stdout.strip() == "4"


def test_functions_named_by_a_set_are_in_one_order() -> None:
    assert list(_docs({"b", "a", "c"})) == ["a", "b", "c"]


def test_setuptools_is_not_given_files_that_do_not_exist() -> None:
    with pytest.raises(AccelError, match=r"text of placed\.cpp"):
        InlineBuilder("placed", {"placed.cpp": "int x;"}).builder()


def test_a_name_with_a_directory_is_refused() -> None:
    builder = InlineBuilder("placed", {"../placed.cpp": "int x;"})
    with pytest.raises(AccelError, match="no plain file name"):
        builder.plan()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch here has CUDA: the next test runs it")
def test_cuda_text_compiles_and_loading_it_says_what_is_missing() -> None:
    from op_builder.engine.commands import build_commands
    from op_builder.load.resolver import Request

    builder = InlineCUDABuilder("gpu", {"gpu.cu": "__global__ void set(int* x) { *x = 1; }\n"})
    request = Request.of(builder)
    assert request.toolset is not None
    assert "gpu.cu" in build_commands(request.plan, request.toolset).compile_steps[0].command
    with pytest.raises(IncompatibleOpError, match="without CUDA"):
        builder.load()


@pytest.mark.slow
def test_functions_are_bound_with_their_docstrings() -> None:
    twice = 'torch::Tensor twice(torch::Tensor x) { TORCH_CHECK(x.dim() < 3, "too deep"); return x * 2; }'
    ops = load_inline("bound", twice, functions={"twice": 'Twice "x".'})
    assert torch.equal(ops.twice(torch.ones(3)), torch.full((3,), 2.0))
    assert 'Twice "x".' in ops.twice.__doc__
    with pytest.raises(RuntimeError, match="too deep"):
        ops.twice(torch.ones(1, 1, 1))


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_text_runs() -> None:
    kernel = """
        #include <c10/cuda/CUDAStream.h>
        __global__ void add_one(float* x, int64_t n) {
          int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
          if (i < n) x[i] += 1.0f;
        }
        void add_one_(torch::Tensor x) {
          add_one<<<(x.numel() + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
              x.data_ptr<float>(), x.numel());
        }
    """
    ops = load_inline("gpu_run", "void add_one_(torch::Tensor x);", kernel, functions="add_one_")
    x = torch.zeros(1000, device="cuda")
    ops.add_one_(x)
    assert torch.equal(x, torch.ones_like(x))
