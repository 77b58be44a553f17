from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import op_builder
from op_builder import Binding, env
from op_builder.builder.inline import load_inline
from op_builder.errors import AccelError, ArgumentError, CompileError, IncompatibleOpError
from tests.support.compilers import needs_gxx, program
from tests.support.foreign_package import ROOT, output_of
from tests.support.small_ops import MODULE, TextBuilder

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("flags", [["-DVALUE=7", "-O1"], ["-DVALUE=7 -O1"], ["-D VALUE=7"]])
def test_text_with_its_own_binding_is_compiled_unchanged(flags: list[str]) -> None:
    assert op_builder.load_inline("plain", MODULE, extra_cflags=flags).value() == 7


@pytest.mark.parametrize("name", ["json", "os"])
def test_a_module_never_replaces_another_one_of_its_name(name: str) -> None:
    before = importlib.import_module(name)
    assert load_inline(name, MODULE, extra_cflags=["-DVALUE=8"]).value() == 8
    assert sys.modules[name] is before


def test_texts_are_one_file_and_errors_name_their_own_lines() -> None:
    with pytest.raises(CompileError) as caught:
        load_inline("broken", [MODULE.replace("VALUE", "1"), "#include <Python.h>\nint wrong = nothing;\n"])
    assert caught.value.diagnostic.startswith("cpp_sources[1]:2:")
    assert "nothing" in caught.value.diagnostic


def test_own_headers_are_found_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "value.h").write_text("#define VALUE 11\n")
    monkeypatch.chdir(tmp_path)
    text = '#include "value.h"\n' + MODULE
    assert load_inline("headed", text, extra_include_paths=["include"]).value() == 11
    (tmp_path / "include" / "value.h").write_text("#define VALUE 12\n")
    assert load_inline("headed", text, extra_include_paths=["include"]).value() == 12


def test_a_c_library_gets_no_headers_and_needs_no_binding() -> None:
    assert load_inline("seven", 'extern "C" int seven() { return 7; }', binding=Binding.C).seven() == 7


@pytest.mark.parametrize("binding", [Binding.STABLE, Binding.PYTHON, Binding.C])
def test_functions_are_bound_only_for_torch_and_tvm_ffi(binding: Binding) -> None:
    with pytest.raises(ArgumentError, match="functions cannot be bound"):
        load_inline("seven", "int seven() { return 7; }", functions="seven", binding=binding)


def test_a_stable_library_with_a_namespace_of_its_own() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    example = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    op = load_inline("pasted", example, binding=Binding.STABLE)
    assert torch.equal(op.twice(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "no-name"}, "name is 'no-name', which is not a valid op name"),
        ({"name": "café"}, "Use ASCII letters"),
        ({"name": "class"}, "name is 'class', a keyword of Python"),
        ({"functions": [1]}, r"functions is \[1\], which is not a list of strings"),
        ({"cpp_sources": ""}, "no text"),
        ({"cpp_sources": "#include <cmath>\nint f() { return 1; }"}, "binds no function"),
        ({"cpp_sources": "", "cuda_sources": "__global__ void f() {}"}, "binds no function"),
        ({"cpp_sources": None}, "cpp_sources is None"),
        ({"extra_cflags": "-O2"}, "extra_cflags is '-O2', which is not a list"),
        ({"extra_ldflags": [b"-lm"]}, r"extra_ldflags is \[b'-lm'\]"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(AccelError, match=message):
        load_inline(**{"name": "good", "cpp_sources": "int x;", **arguments})  # type: ignore[arg-type]


@needs_gxx
def test_without_a_compiler_for_torchs_headers_nothing_is_built_and_the_remedy_works(tmp_path: Path) -> None:
    zig = program(tmp_path / "zig", f'case "$*" in *probe.cpp*) exit 1;; *) exec {shutil.which("g++")} "$@";; esac')
    for variables in ({"PATH": str(tmp_path / "empty"), "CXX": None}, {"CXX": str(zig)}):
        with env.scope(**variables), pytest.raises(IncompatibleOpError, match="compiler") as caught:
            load_inline("twice", "torch::Tensor twice(torch::Tensor x) { return x * 2; }", functions="twice")
        assert "cannot compile a small program" not in str(caught.value)
        assert "apt-get install g++" in caught.value.remedy
        assert "ziglang" not in caught.value.remedy


@pytest.mark.parametrize(
    ("method", "value"),
    [("sources", "x.cpp"), ("include_paths", None), ("cxx_args", "-O2"), ("libraries_args", 1), ("source_args", "-O1")],
)
def test_a_builders_method_that_returns_no_list_is_named(method: str, value: object) -> None:
    builder = TextBuilder("wrong", {"wrong.cpp": "int x;"})
    setattr(builder, method, lambda *_: value)
    with pytest.raises(AccelError, match=rf"{method}\(.*list of strings"):
        builder.plan()


# The directory's name is not UTF-8, and in GBK its bytes are characters whose second byte ninja or make would escape.
HEADED = rf"""
import os
from op_builder import load_inline
directory = os.fsdecode(b"caf\xc3\xa9 \x81| \x81\\x")
os.mkdir(directory)
for value in (1, 2):
    open(os.path.join(directory, "v.h"), "w").write(f"#define VALUE {{value}}")
    print(load_inline("headed", {'#include "v.h" // déjà vu' + MODULE!a}, extra_include_paths=[directory]).value())
"""


@pytest.mark.parametrize("locale", ["C", "zh_CN.GBK"])
def test_texts_and_directories_of_any_characters_work_and_edits_are_noticed_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if locale != "C":
        if shutil.which("localedef") is None or not Path("/usr/share/i18n/charmaps").is_dir():
            pytest.skip("no localedef, or no charmaps")
        command = ["localedef", "-c", "-i", "zh_CN", "-f", "GBK", str(tmp_path / locale)]
        subprocess.run(command, capture_output=True, check=False)  # its warnings are a status
    variables = {"LOCPATH": str(tmp_path), "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    output = output_of("-c", f"{HEADED}import sys; print(sys.getfilesystemencoding())", **variables)
    assert output.split() == ["1", "2", "gbk" if locale != "C" else "ascii"]


@pytest.mark.slow
def test_functions_are_bound_with_their_docstrings_and_torchs_handling_of_errors() -> None:
    twice = """
        torch::Tensor twice(torch::Tensor x) {
          TORCH_CHECK_INDEX(x.dim() < 3, "too deep");
          if (x.dim() == 2) TORCH_WARN("an odd ", 2);
          return x * 2;
        }
    """
    documentation = 'Twice "x",\nor \\ of 3.'
    ops = load_inline("bound", twice, functions={"twice": documentation})
    assert torch.equal(ops.twice(torch.ones(3)), torch.full((3,), 2.0))
    assert documentation in ops.twice.__doc__
    with pytest.raises(IndexError, match="too deep"):
        ops.twice(torch.ones(1, 1, 1))
    with pytest.warns(UserWarning, match="an odd 2"):
        ops.twice(torch.ones(1, 1))


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
