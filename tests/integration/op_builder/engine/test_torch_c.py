"""Torch's C ABI as `csrc/torch_c` declares it: against torch's own headers, and every kind of value there and back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder.cache.store import Cache
from op_builder.cpu import PinMemoryBuilder
from op_builder.engine.stable_abi import check_target_functions
from op_builder.errors import LoadError
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.toolset import find_cxx
from tests.support.compilers import needs_gxx, require_program
from tests.support.small_ops import make_small

CSRC = Path(__file__).parents[4] / "csrc"
SHIMS = ("torch/csrc/inductor/aoti_torch/c/shim.h", "torch/csrc/stable/c/shim.h")

ECHO = """
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_c/boxed.h"
#include "torch_c/library.h"
#include "torch_c/ops.h"

using accel::Tensor;

static int64_t integer(int64_t x) { return x; }
static double real(double x) { return x; }
static bool truth(bool x) { return x; }
static std::string text(std::string x) { return x; }
static std::vector<int64_t> integers(std::vector<int64_t> x) { return x; }
static std::vector<double> reals(std::vector<double> x) { return x; }
static std::string many(int64_t a, double b, bool c, std::string d, std::vector<int64_t> e) {
  const std::string numbers = std::to_string(a) + " " + std::to_string(b) + (c ? " yes " : " no ");
  return numbers + d + " " + std::to_string(e.size());
}
static Tensor copied(Tensor x) {
  Tensor other = x;  // a second handle of it
  Tensor third = x;
  third = other;
  return third;
}
static Tensor like(Tensor x) { return accel::empty_like(x); }
static std::vector<Tensor> tensors(std::vector<Tensor> x) { return x; }
static int64_t numel_or(std::optional<Tensor> x, int64_t otherwise) { return x.has_value() ? x->numel() : otherwise; }
static std::string describe(Tensor x) {
  const std::string type = std::string(x.type_name()) + " " + std::to_string(static_cast<int>(x.scalar_type()));
  const char* const place = x.is_cpu() ? " cpu" : " elsewhere";
  return type + " " + std::to_string(x.element_size()) + (x.is_strided() ? " dense" : " sparse") + place;
}
static int64_t refuse(Tensor, std::vector<Tensor>, std::optional<Tensor>, std::string) {
  throw std::invalid_argument("as it was asked");
}
static int64_t address(Tensor x) { return reinterpret_cast<int64_t>(x.data_ptr()); }

static void define(accel::Library& m) {
  m.def("integer(int x) -> int").def("real(float x) -> float").def("truth(bool x) -> bool").def("text(str x) -> str");
  m.def("integers(int[] x) -> int[]").def("reals(float[] x) -> float[]");
  m.def("many(int a, float b, bool c, str d, int[] e) -> str");
  m.def("copied(Tensor(a) x) -> Tensor(a)").def("like(Tensor x) -> Tensor");
  m.def("tensors(Tensor[] x) -> Tensor[]").def("numel_or(Tensor? x, int otherwise) -> int");
  m.def("describe(Tensor x) -> str").def("address(Tensor x) -> int");
  m.def("refuse(Tensor a, Tensor[] b, Tensor? c, str d) -> int");
  m.def("too_few(int x) -> int").def("too_many(int x, int y) -> int").def("no_result(int x) -> ()");
}
static void implement(accel::Library& m) {
  m.impl("integer", ACCEL_BOX(&integer)).impl("real", ACCEL_BOX(&real)).impl("truth", ACCEL_BOX(&truth));
  m.impl("text", ACCEL_BOX(&text)).impl("integers", ACCEL_BOX(&integers)).impl("reals", ACCEL_BOX(&reals));
  m.impl("many", ACCEL_BOX(&many)).impl("copied", ACCEL_BOX(&copied)).impl("like", ACCEL_BOX(&like));
  m.impl("tensors", ACCEL_BOX(&tensors)).impl("numel_or", ACCEL_BOX(&numel_or));
  m.impl("describe", ACCEL_BOX(&describe)).impl("address", ACCEL_BOX(&address));
  m.impl("refuse", ACCEL_BOX(&refuse)).impl("no_result", ACCEL_BOX(&integer));
  m.impl("too_few", ACCEL_BOX(&numel_or)).impl("too_many", ACCEL_BOX(&integer));
}
ACCEL_OP_LIBRARY({nullptr, define}, {"CompositeExplicitAutograd", implement})
"""


TARGET = ["-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"]


def declared(text: str) -> set[str]:
    return set(re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", text))


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_declarations_are_those_of_torch(compiler: str) -> None:
    text = "\n".join([f'#include "{CSRC}/torch_c/functions.h"', *(f"#include <{name}>" for name in SHIMS)])
    command = [require_program(compiler), *TARGET, "-fsyntax-only", "-x", "c++", "-"]
    command += [f"-I{path}" for path in (CSRC, torch_install().root / "include")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_gxx
def test_torch_declares_every_function() -> None:
    """Of 2.10, which the headers of later ones show for that target: else the compiler has nothing to compare."""
    text = "\n".join(f"#include <{name}>" for name in SHIMS)
    command = ["g++", *TARGET, "-E", "-P", "-x", "c++", "-", f"-I{torch_install().root / 'include'}"]
    theirs = declared(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
    assert "torch_exception_get_what" not in theirs
    ours = declared((CSRC / "torch_c" / "functions.h").read_text())
    assert len(ours) > 40
    assert ours <= theirs


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("echo")
    return make_small(directory / "op", Cache(directory / "cache"), source=ECHO).load()


@pytest.mark.parametrize(
    ("op", "value"),
    [
        *(("integer", value) for value in (0, -1, 2**63 - 1, -(2**63))),
        *(("real", value) for value in (0.0, -1.5, 1e308, float("inf"))),
        *(("truth", value) for value in (True, False)),
        *(("text", value) for value in ("", "a", "größer\n", "x" * 100_000)),
        *(("integers", value) for value in ([], [1], list(range(-500, 500)))),
        *(("reals", value) for value in ([], [0.1, -2e300])),
    ],
)
def test_a_value_comes_back_as_it_went(echo: Any, op: str, value: Any) -> None:
    assert getattr(echo, op)(value) == value
    assert echo.many(-3, 0.5, True, "four", [1, 2]) == "-3 0.500000 yes four 2"


def test_tensors_come_back_as_themselves_and_none_is_kept(echo: Any) -> None:
    x, y = torch.arange(6.0), torch.arange(3)
    before = x._use_count(), y._use_count()  # type: ignore[attr-defined]
    for _ in range(100):
        results = [echo.copied(x), *echo.tensors([x, y])]
        assert [result.data_ptr() for result in results] == [tensor.data_ptr() for tensor in (x, x, y)]
        del results
        assert (echo.numel_or(x, -1), echo.numel_or(None, -1)) == (6, -1)
        with pytest.raises(ValueError, match="as it was asked"):
            echo.refuse(x, [x, y], y, "text")
    assert (x._use_count(), y._use_count()) == before  # type: ignore[attr-defined]


@pytest.mark.parametrize(("op", "arguments"), [("too_few", (1,)), ("too_many", (1, 2)), ("no_result", (1,))])
def test_a_schema_that_its_function_does_not_fit_is_an_error(echo: Any, op: str, arguments: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="arguments and"):
        getattr(echo, op)(*arguments)


def test_a_tensor_like_another_has_its_shape_type_and_strides(echo: Any) -> None:
    for x in (torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        result = echo.like(x)
        assert (result.shape, result.dtype, result.stride()) == (x.shape, x.dtype, x.stride())
        assert result.data_ptr() != x.data_ptr()


TYPES = {
    torch.float32: "Float 0 4",
    torch.bfloat16: "BFloat16 1 2",
    torch.float16: "Half 2 2",
    torch.float64: "Double 3 8",
    torch.uint8: "Byte 4 1",
    torch.int8: "Char 5 1",
    torch.int32: "Int 6 4",
    torch.int64: "Long 7 8",
    torch.bool: "Bool 8 1",
    torch.int16: "Short 9 2",
    torch.uint16: "UInt16 9 2",
    torch.complex64: "ComplexFloat 9 8",
    torch.float8_e8m0fnu: "number 44 9 1",
}


def test_types_and_places_have_torchs_names(echo: Any) -> None:
    found = {dtype: echo.describe(torch.empty(2, dtype=dtype)) for dtype in TYPES}
    assert found == {dtype: f"{name} dense cpu" for dtype, name in TYPES.items()}
    assert echo.describe(torch.ones(2, device="meta")) == "Float 0 4 dense elsewhere"
    assert echo.describe(torch.eye(2).to_sparse()) == "Float 0 4 sparse cpu"


def test_a_function_of_torch_that_fails_is_named(echo: Any) -> None:
    with pytest.raises(RuntimeError, match="aoti_torch_get_data_ptr"):
        echo.address(torch.eye(2).to_sparse())


# What binaries for other platforms may need, found out without opening them ---------------------

FOUND = {"malloc@GLIBC_2.17", "_free@/usr/lib/libSystem.B.dylib", "PyErr_CheckSignals", "__cxa_finalize"}


def check(kind: str, functions: set[str]) -> None:
    builder = PinMemoryBuilder()
    check_target_functions(Path("acme.so"), builder.plan(), kind, functions, find_cxx(builder.cache.memo))


def test_functions_of_torch_2_10_and_of_the_systems_libraries_are_accepted() -> None:
    check("accel", FOUND | {"torch_call_dispatcher", "aoti_torch_library_init_def", "aoti_torch_aten_pad"})


@pytest.mark.parametrize("name", ["torch_from_blob", "aoti_torch_no_such", "acme_missing", "_ZN2at3addEv"])
def test_another_function_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(LoadError, match=rf"0x020a000000000000\): {name}\."):
        check("accel", FOUND | {name})


def test_ops_that_only_an_opened_library_names_are_refused() -> None:
    with pytest.raises(LoadError, match="cannot be opened here"):
        check("torch_library", set())
