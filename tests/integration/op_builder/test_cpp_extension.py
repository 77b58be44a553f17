"""torch's two calls on this engine. Texts with torch's headers, which take half a minute to compile, are slow tests."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import platform
import re
import signal
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
import torch
import torch.utils.cpp_extension as torchs

from op_builder import Binding, CPUOpBuilder, cpp_extension, env
from op_builder.cpp_extension import load, load_inline
from op_builder.errors import AccelError, ArgumentError, CompileError
from op_builder.integrations import torch_extensions
from tests.support.compilers import needs_gxx, program, require_program, shared_library
from tests.support.foreign_package import ROOT, python
from tests.support.small_ops import MODULE


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory and cache."""
    monkeypatch.chdir(tmp_path)
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "cache")):
        yield tmp_path


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize("suffix", [".cpp", ".C"])
def test_a_source_is_relative_to_the_current_directory_and_may_be_a_text(suffix: str) -> None:
    source = write(f"deep/m{suffix}", MODULE)
    assert load("m", f" {source}\n", extra_cflags="-DVALUE=3 -O0").value() == 3


def test_a_name_that_no_module_can_have_is_changed_and_a_missing_directory_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = write("m.cpp", MODULE)
    assert load("my-ops.v2", source, ["-DVALUE=7"], extra_include_paths=["none", "nothing"]).value() == 7
    (warning,) = (record.getMessage() for record in caplog.records if "do not exist" in record.getMessage())
    assert re.search(r"extra_include_paths do not exist: /\S+/none, /\S+/nothing\.$", warning)


NO_STACK = '.section .note.GNU-stack,"",%progbits\n'


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_sources_of_three_languages_are_linked(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_program(compiler)
    monkeypatch.setenv("CXX", compiler)
    names = ("plain", "assembled", "raw")
    answer = "movl $2, %eax" if platform.machine() == "x86_64" else "mov w0, #2"
    sources = [
        write("m.cpp", "".join(f'extern "C" int {name}();\n' for name in names) + MODULE),
        write("plain.c", "int plain(void) { int class = 5; return class; }\n"),  # no valid C++
        write(
            "assembled.S",
            f"#define NAME assembled\n.globl NAME\n.text\nNAME:\n    {answer.replace('2', '6')}\n    ret\n{NO_STACK}",
        ),
        write("raw.s", f"# no directive\n.globl raw\n.text\nraw:\n    {answer}\n    ret\n{NO_STACK}"),
    ]
    assert load("m", sources, extra_cflags=["-DVALUE=plain()+assembled()+raw()"]).value() == 13
    write("raw.s", Path("raw.s").read_text().replace("2", "4", 1))
    assert load("m", sources, extra_cflags=["-DVALUE=plain()+assembled()+raw()"]).value() == 15


@pytest.mark.parametrize(
    ("flags", "value"), [([" -DA=1\n\t", "\n-DB=A+4  ", "'-DVALUE=(1 + B)'"], 6), (r"-DVALUE=sizeof(\"two\")", 4)]
)
def test_flags_are_read_as_a_shell_reads_them(flags: Any, value: int) -> None:
    assert load("m", write("m.cpp", MODULE), extra_cflags=flags).value() == value


def test_a_plain_library_is_opened_and_its_path_returned(place: Path) -> None:
    source = write("lib.cpp", 'extern "C" int eight() { return 8; }\n')
    path = load("plain", source, is_python_module=False)
    assert Path(path).is_relative_to(place / "cache")
    assert ctypes.CDLL(path).eight() == 8


REGISTERED = """
#include <torch/csrc/stable/library.h>
void nothing() {}
STABLE_TORCH_LIBRARY(cpp_extension_copied, m) { m.def("nothing() -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(cpp_extension_copied, CompositeExplicitAutograd, m) {
  m.impl("nothing", TORCH_BOX(&nothing));
}
"""


def test_the_build_directory_gets_a_copy_of_the_opened_library(place: Path) -> None:
    load("m", write("m.cpp", MODULE), extra_cflags=["-DVALUE=1"], build_directory="out/deep")
    path = load("m", write("m.cpp", REGISTERED), build_directory="out/deep", is_python_module=False)
    assert [path.name for path in (place / "out" / "deep").iterdir()] == ["m.so"]
    assert (place / "out" / "deep" / "m.so").read_bytes() == Path(path).read_bytes()
    torch.ops.load_library(path)  # a second file would register the namespace again and end the process
    torch.ops.cpp_extension_copied.nothing()
    with pytest.raises(AccelError, match=r"cannot be copied to build_directory 'm\.cpp': File exists"):
        load("m", "m.cpp", build_directory="m.cpp", is_python_module=False)


@pytest.mark.parametrize("directory", [5, b"/x", "a\0b", ["a", "b"]])
def test_a_build_directory_that_is_no_path_is_refused_before_the_compile(directory: Any) -> None:
    with pytest.raises(ArgumentError, match="build_directory"):
        load("m", write("m.cpp", "#error not reached"), build_directory=directory)


def test_paths_may_be_objects() -> None:
    write("m.cpp", '#include "value.h"\n' + MODULE)
    write("headers/value.h", "#define VALUE 6\n")
    entry = next(found for found in os.scandir() if found.name == "m.cpp")  # of no class of pathlib
    assert load("m", entry, extra_include_paths=PurePath("headers")).value() == 6
    assert load("m", [entry], extra_include_paths=[PurePath("headers")], build_directory=PurePath("out")).value() == 6


def test_a_builder_of_a_plain_library_gets_its_ctypes_object(place: Path) -> None:
    write("lib.cpp", 'extern "C" int nine() { return 9; }\n')

    class PlainBuilder(CPUOpBuilder):
        NAME = "plain_nine"
        BINDING = Binding.LIBRARY

        def sources(self) -> list[str]:
            return [str(place / "lib.cpp")]

    assert PlainBuilder().load().nine() == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sources": 5}, "load: sources is 5"),
        ({"sources": []}, "load: sources is empty"),
        ({"name": "  "}, "load: name is '  '"),
        ({"extra_cflags": 5}, "load: extra_cflags is 5"),
        ({"extra_cflags": "'-DX"}, "cannot be split into words"),
        ({"extra_ldflags": [None]}, "load: extra_ldflags is [None]"),
        ({"sources": ["missing.cpp"]}, "load: the source 'missing.cpp' does not exist"),
        ({"sources": ["."]}, "load: the source '.' is not a file"),
        ({"sources": ["m.txt"]}, "load: the source 'm.txt' has the unknown suffix '.txt'"),
        ({"with_sycl": True}, "load: with_sycl is True. SYCL sources are not supported here"),
        ({"is_standalone": True}, "load: is_standalone is True. Standalone programs are not supported here"),
        ({"sources": ["a.cu"], "with_cuda": False}, "load: with_cuda is False, but there are CUDA sources"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(arguments: dict[str, Any], message: str) -> None:
    write("m.cpp", MODULE)
    write("a.cu", "")
    write("m.txt", "")
    with pytest.raises(AccelError, match=re.escape(message)):
        load(**{"name": "m", "sources": ["m.cpp"], **arguments})


def test_functions_may_be_in_a_namespace_or_none() -> None:
    text = "#include <pybind11/pybind11.h>\nnamespace space { int f() { return 3; } }"
    options: dict[str, Any] = {"with_pytorch_error_handling": False, "no_implicit_headers": True}
    assert getattr(load_inline("m", text, functions=["space::f"], **options), "space::f")() == 3
    empty = load_inline("empty", text, functions=[], **options)
    assert [name for name in vars(empty) if not name.startswith("__")] == []
    for functions in (5, ["a b"], {"class": ""}):
        with pytest.raises(ValueError, match="load_inline: "):
            load_inline("m", "int x;", functions=functions)  # type: ignore[arg-type]


# What extensions use of torch's headers, in one text.
EVERYTHING = """
struct Pair {
  Pair(int64_t rows, int64_t columns) : ones(torch::ones({rows, columns})) {}
  torch::Tensor sum() const { return ones + ones; }
  torch::Tensor ones;
};
struct Net : torch::nn::Module {
  Net(int64_t inputs, int64_t outputs) : layer(register_module("layer", torch::nn::Linear(inputs, outputs))) {}
  torch::Tensor forward(torch::Tensor x) { return layer->forward(x); }
  torch::nn::Linear layer;
};
struct Scale : torch::autograd::Function<Scale> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x, double factor) {
    context->saved_data["factor"] = factor;
    return x * factor;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list grads) {
    return {grads[0] * context->saved_data["factor"].toDouble(), torch::Tensor()};
  }
};
torch::Tensor scale(torch::Tensor x, double factor) { return Scale::apply(x, factor); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Pair> pair(m, "Pair");
  pair.def(py::init<int64_t, int64_t>()).def("sum", &Pair::sum).def_readonly("ones", &Pair::ones);
  torch::python::bind_module<Net>(m, "Net").def(py::init<int64_t, int64_t>()).def("forward", &Net::forward);
  m.def("scale", &scale);
  m.def("fresh", [] { return torch::empty({2}); });
  m.def("half", [] { return double(at::Half(1.5f) * at::Half(2.0f)); });
}
"""


@pytest.mark.slow
def test_classes_modules_and_autograd_work_as_from_torchs_loader() -> None:
    ops = load_inline("everything", EVERYTHING, use_pch=True, keep_intermediates=False)
    assert ops.Pair(2, 3).sum().tolist() == [[2.0] * 3] * 2
    assert ops.Pair(2, 3).ones.shape == (2, 3)
    net, x = ops.Net(4, 2), torch.randn(3, 4)
    weight, bias = net.parameters()
    assert torch.allclose(net.forward(x), torch.nn.functional.linear(x, weight, bias))
    net.forward(x).sum().backward()
    assert torch.allclose(bias.grad, torch.full((2,), 3.0))
    net.to(torch.float64)
    assert net.forward(x.double()).dtype == torch.float64
    y = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(ops.scale(y, 5.0).sum(), y)[0].tolist() == [5.0] * 3
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert ops.fresh().dtype == torch.float64
    finally:
        torch.set_default_dtype(before)
    assert ops.half() == 3.0


# Without torch's handling of errors and warnings.
PLAIN = """
torch::Tensor add(torch::Tensor x, torch::Tensor y) { return x + 2 * y; }
void backward(torch::Tensor x) { x.backward({}); }
void backward_without_gil(torch::Tensor x) { pybind11::gil_scoped_release released; x.backward({}); }
void warn() { TORCH_WARN("an odd ", 3); }
TORCH_LIBRARY(cpp_extension_compound, m) { m.def("add", &add); }
"""


class Doubled(torch.autograd.Function):
    """Its backward pass is Python, which needs the GIL."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


@pytest.mark.slow
def test_functions_hold_the_gil_and_warn_on_stderr_without_torchs_handling() -> None:
    functions = ["add", "backward", "backward_without_gil", "warn"]
    ops = load_inline("plain", PLAIN, functions=functions, with_pytorch_error_handling=False)
    x, y = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.equal(ops.add(x, y), x + 2 * y)
    assert torch.autograd.gradcheck(torch.ops.cpp_extension_compound.add, (x, y))
    with pytest.raises(RuntimeError, match="the GIL"):
        ops.backward(Doubled.apply(x).sum())
    ops.backward_without_gil(Doubled.apply(x).sum())
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.warn()


def test_a_compile_error_shows_the_compilers_line_and_each_has_its_log() -> None:
    logs = set()
    for _ in range(3):
        with pytest.raises(CompileError, match=r"m\.cpp:2:") as caught:
            load("m", write("m.cpp", "\nint wrong = nothing;\n"))
        logs.add(caught.value.log_path)
    assert len(logs) == 3


def test_torchs_functions_are_replaced_and_restored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    theirs = torchs.load
    classes = {name: value for name, value in vars(torchs).items() if isinstance(value, type)}
    source = write("m.cpp", MODULE)
    with torch_extensions.in_place_of_torch():
        torch_extensions.on()  # twice is once
        assert torchs.load is cpp_extension.load
        assert torchs.load(name="m", sources=[source], extra_cflags=["-DVALUE=5"], verbose=True).value() == 5
        assert env.ACCEL_CPP_EXTENSION.get()
        with torch_extensions.in_place_of_torch():
            pass
        assert torchs.load is cpp_extension.load
        importlib.reload(torchs)
        assert torchs.load is cpp_extension.load
        vars(torchs).update(classes)  # other tests have imported them
    assert (torchs.load.__module__, torchs.load.__name__) == (theirs.__module__, "load")
    assert not env.ACCEL_CPP_EXTENSION.get()
    replaced = [record.getMessage() for record in caplog.records if "replaces load" in record.getMessage()]
    assert replaced == ["op_builder.cpp_extension replaces load and load_inline of torch.utils.cpp_extension."] * 2


@pytest.mark.parametrize(
    ("value", "module", "warning"),
    [
        ("on", "op_builder.cpp_extension", ""),
        ("perhaps", "torch.utils.cpp_extension", "torch.utils.cpp_extension keeps its own functions: ACCEL_CPP_EXT"),
    ],
)
def test_the_file_for_every_start_of_python_reads_the_variable(value: str, module: str, warning: str) -> None:
    line = (ROOT / "build_tools" / "accel_ops.pth").read_text()
    code = f"{line}from torch.utils.cpp_extension import load; print(load.__module__)"
    done = python("-c", code, ACCEL_CPP_EXTENSION=value)
    assert done.stdout == f"{module}\n", done.stderr
    assert warning in done.stderr


PROGRAM = """
import sys
assert "torch" not in sys.modules, "torch is imported only by those who need it"
from torch.utils.cpp_extension import load
print(load("m", ["m.cpp"], extra_cflags=["-DVALUE=9"]).value(), sys.argv[1:], load.__module__)
"""


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "op_builder", "run", *arguments)


@pytest.mark.parametrize("form", [["program.py"], ["-m", "program"]])
def test_a_program_runs_unchanged(form: list[str]) -> None:
    write("m.cpp", MODULE)
    write("program.py", PROGRAM)
    done = run_command(*form, "--steps", "3")
    assert done.stdout.split("\n")[0] == "9 ['--steps', '3'] op_builder.cpp_extension", done.stderr


def test_a_program_has_its_arguments_file_directory_and_exit_status_as_in_python(place: Path) -> None:
    write("src/sibling.py", "")
    code = "import os, sys, sibling; print(os.path.isabs(__file__), sys.argv[1:]); sys.exit(5)"
    write("src/program.py", code)
    (place / "link.py").symlink_to("src/program.py")
    done = run_command("link.py", "--", "-h", "--")
    assert (done.stdout, done.returncode) == ("True ['--', '-h', '--']\n", 5), done.stderr


def test_a_program_runs_to_its_very_end_as_in_python(place: Path) -> None:
    (place / "program.py").write_text((ROOT / "tests" / "support" / "lasting_thread.py").read_text())
    for command in ([], ["-m", "op_builder", "run"]):
        done = python(*command, "-X", "dev", "program.py")
        assert done.stdout == "Settings(steps=3) dev True\natexit: Settings\n", done.stderr
        assert done.returncode == -signal.SIGINT
        assert "op_builder" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["missing.py"], ["-m", "missing"]])
def test_a_missing_program_is_one_line(arguments: list[str]) -> None:
    done = run_command(*arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


def test_children_of_a_program_build_here() -> None:
    child = "from torch.utils.cpp_extension import load; print(load.__module__)"
    write("program.py", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)")
    done = run_command("program.py")
    assert done.stdout.startswith("op_builder."), done.stderr


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch has loaded its own libcudart")
@needs_gxx
def test_a_cuda_runtime_without_a_name_for_the_linker_is_linked(place: Path) -> None:
    """As in the wheels of NVIDIA."""
    library = place / "cuda" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    write("cuda/include/cuda_runtime.h", 'extern "C" int cudaRuntime();\n')
    shared_library(library, 'extern "C" int cudaRuntime() { return 13; }\n', f"-Wl,-soname,{library.name}")
    release = "Cuda compilation tools, release 13.0, V13.0.88"
    program(place / "cuda" / "bin" / "nvcc", f'echo "{release}"; echo "#\\$ TOP={place / "cuda"}"')
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    text = f"#include <cuda_runtime.h>\n{MODULE}"
    with env.scope(CUDA_HOME=str(place / "cuda"), LD_LIBRARY_PATH=str(library.parent)):
        module = load("m", write("m.cpp", text), extra_cflags=["-DVALUE=cudaRuntime()"], with_cuda=True)
    assert module.value() == 13
