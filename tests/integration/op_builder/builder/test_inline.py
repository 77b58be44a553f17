"""``load_inline``."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import op_builder
from op_builder import Binding, env
from op_builder.builder.inline import GivenBuilder, GivenCUDABuilder, load_inline
from op_builder.errors import AccelError, CompileError, IncompatibleOpError
from tests.support.foreign_package import ROOT, run_python

# Texts without torch's headers, which take half a minute to compile.
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


@pytest.mark.parametrize("flags", [["-DVALUE=7", "-O1"], ["-DVALUE=7 -O1"], ["-D VALUE=7"]])
def test_text_with_its_own_binding_is_compiled_unchanged(flags: list[str]) -> None:
    assert op_builder.load_inline("plain", module("plain"), extra_cflags=flags).value() == 7


def test_a_flag_with_quotes_is_not_split() -> None:
    text = module("quoted").replace("VALUE", "sizeof(TEXT)")
    assert load_inline("quoted", text, extra_cflags=['-DTEXT="a -b"']).value() == 5


@pytest.mark.parametrize("name", ["json", "os"])
def test_a_module_never_replaces_another_one_of_its_name(name: str) -> None:
    before = importlib.import_module(name)
    assert load_inline(name, module(name), extra_cflags=["-DVALUE=8"]).value() == 8
    assert sys.modules[name] is before


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
    monkeypatch.setattr("op_builder.load.loader.opened_entries", lambda _op: [])
    with env.scope(ACCEL_JIT="0", PATH="/nowhere"):
        assert load_inline("kept", module("kept"), extra_cflags=["-DVALUE=3"]).value() == 3


def test_texts_are_one_file_and_errors_name_their_own_lines() -> None:
    with pytest.raises(CompileError) as caught:
        load_inline("broken", [module("broken").replace("VALUE", "1"), "#include <Python.h>\nint wrong = nothing;\n"])
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


def test_a_stable_library_with_a_namespace_of_its_own() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    example = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    op = load_inline("pasted", example, binding=Binding.STABLE)
    assert torch.equal(op.twice(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(AccelError, match="functions cannot be bound"):
        load_inline("pasted", example, functions="twice", binding=Binding.STABLE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "no-name"}, "name is 'no-name', which is not a valid op name"),
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"name": "café"}, "Use ASCII letters"),
        ({"name": "x" * 300}, "at most 128 characters"),
        ({"name": None}, "name is None"),
        ({"name": "class"}, "'class' is not a valid name"),
        ({"functions": "f()"}, r"'f\(\)' is not a valid name"),
        ({"functions": [1]}, r"functions is \[1\], which is not a list of strings"),
        ({"cpp_sources": ""}, "no text"),
        ({"cpp_sources": ["", "\n"]}, "no text"),
        ({"cpp_sources": None}, "cpp_sources is None"),
        ({"extra_cflags": "-O2"}, "extra_cflags is '-O2', which is not a list"),
        ({"extra_cuda_cflags": None}, "extra_cuda_cflags is None"),
        ({"extra_ldflags": [b"-lm"]}, r"extra_ldflags is \[b'-lm'\]"),
        ({"extra_include_paths": "include"}, "extra_include_paths is 'include'"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(AccelError, match=message):
        load_inline(**{"name": "good", "cpp_sources": "int x;", **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "value"),
    [("sources", "x.cpp"), ("include_paths", None), ("cxx_args", "-O2"), ("libraries_args", 1), ("source_args", "-O1")],
)
def test_a_builders_method_that_returns_no_list_is_named(method: str, value: object) -> None:
    builder = GivenBuilder("wrong", {"wrong.cpp": "int x;"})
    setattr(builder, method, lambda *_: value)
    with pytest.raises(AccelError, match=rf"GivenBuilder\.{method}\(.*\) is {value!r}, which is not a list of strings"):
        builder.plan()


@pytest.mark.parametrize(("attribute", "value"), [("name", "a/b"), ("absolute_name", lambda: "pkg.a-b")])
def test_a_builders_invalid_name_is_refused(attribute: str, value: object) -> None:
    builder = GivenBuilder("wrong", {"wrong.cpp": "int x;"})
    setattr(builder, attribute, value)
    with pytest.raises(AccelError, match="is not a valid op name"):
        builder.plan()


def test_text_beyond_ascii_compiles_whatever_the_locale(tmp_path: Path) -> None:
    text = "// déjà vu\n" + module("accents")
    load = f"load_inline('accents', {text!a}, extra_cflags=['-DVALUE=4'])"
    code = f"from op_builder import load_inline; print({load}.value())"
    done = run_python(code, tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.stdout.strip() == "4"


def test_setuptools_cannot_build_text() -> None:
    with pytest.raises(AccelError, match=r"has sources without files \(placed\.cpp\)"):
        GivenBuilder("placed", {"placed.cpp": "int x;"}).builder()


def test_a_text_named_with_a_directory_is_refused() -> None:
    builder = GivenBuilder("placed", {"../placed.cpp": "int x;"})
    with pytest.raises(AccelError, match="not a plain file name"):
        builder.plan()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.skipif(torch.version.cuda is not None, reason="test_cuda_text_runs runs it")
def test_loading_cuda_text_without_a_device_is_refused() -> None:
    from op_builder.engine.commands import build_commands
    from op_builder.load.resolver import Request

    builder = GivenCUDABuilder("gpu", {"gpu.cu": "__global__ void set(int* x) { *x = 1; }\n"})
    request = Request.of(builder)
    assert request.toolset is not None
    assert "gpu.cu" in build_commands(request.plan, request.toolset).compile_steps[0].command
    with pytest.raises(IncompatibleOpError, match="without CUDA"):
        builder.load()


@pytest.mark.slow
def test_functions_are_bound_with_their_docstrings() -> None:
    twice = 'torch::Tensor twice(torch::Tensor x) { TORCH_CHECK(x.dim() < 3, "too deep"); return x * 2; }'
    documentation = 'Twice "x",\nor \\ of 3.'
    ops = load_inline("bound", twice, functions={"twice": documentation})
    assert torch.equal(ops.twice(torch.ones(3)), torch.full((3,), 2.0))
    assert documentation in ops.twice.__doc__
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
