"""CUDA ops where a toolkit is: compiled for real, against whatever torch is here, device or not."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from op_builder import CUDAOpBuilder, env
from op_builder.builder import assert_no_cuda_mismatch, get_default_compute_capabilities, installed_cuda_version
from op_builder.builder.cuda import names_archs
from op_builder.cache.store import Cache, Entry
from op_builder.errors import CUDAMismatchException, IncompatibleOpError, LoadError, MissingCUDAException
from op_builder.system.outcomes import failures
from op_builder.toolchains.toolset import find_cxx
from tests.support.builds import compile_op, decision, find_cached, lookup
from tests.support.small_ops import SmallBuilder, TorchBuilder

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
cpu_torch_only = pytest.mark.skipif(torch.version.cuda is not None, reason="torch is a CUDA build")

KERNEL = """
#include "increment.h"

namespace {
__global__ void increment_kernel(float* data, long count) {
  const long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
  if (i < count) data[i] += 1.0f;
}
}  // namespace

int increment_cuda(float* data, long count, void* stream) {
  const int threads = 256;
  const long blocks = (count + threads - 1) / threads;
  if (blocks > 0) increment_kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(data, count);
  return static_cast<int>(cudaGetLastError());
}
"""

HEADER = """
#pragma once
#include <cuda_runtime.h>
// Adds 1 to each of `count` floats at `data` in device memory; returns a cudaError_t.
int increment_cuda(float* data, long count, void* stream);
"""

BINDING = """
#include "torch_c/boxed.h"
#include "torch_c/library.h"
#include <stdexcept>
#include "increment.h"

static void increment_(accel::Tensor x) {
  if (increment_cuda(static_cast<float*>(x.data_ptr()), x.numel(), nullptr) != 0)
    throw std::runtime_error("increment_ failed to start");
}
static void define(accel::Library& m) { m.def("increment_(Tensor(a!) x) -> ()"); }
static void cuda(accel::Library& m) { m.impl("increment_", ACCEL_BOX(&increment_)); }
ACCEL_OP_LIBRARY({nullptr, define}, {"CUDA", cuda})
"""


class IncrementBuilder(CUDAOpBuilder, SmallBuilder):
    """A kernel that knows no torch, and a thin binding on the Stable ABI."""

    NAME = "increment"

    def __init__(self, directory: Path, cache: Cache) -> None:
        super().__init__(directory, cache)
        self.files = ["binding.cpp", "increment.cu"]
        self.kernel_flags: list[str] = []

    def nvcc_args(self) -> list[str]:
        return self.kernel_flags


@pytest.fixture(autouse=True)
def archs() -> Iterator[None]:
    with env.scope(TORCH_CUDA_ARCH_LIST="9.0"):
        yield


def make_increment(directory: Path, cache: Cache, kernel: str = KERNEL) -> IncrementBuilder:
    directory.mkdir()
    (directory / "increment.cu").write_text(kernel)
    (directory / "increment.h").write_text(HEADER)
    (directory / "binding.cpp").write_text(BINDING)
    return IncrementBuilder(directory, cache)


@pytest.fixture
def increment(tmp_path: Path, cache: Cache) -> IncrementBuilder:
    return make_increment(tmp_path / "op", cache)


def compiled(builder: CUDAOpBuilder) -> Entry:
    """The op, compiled as ``load()`` would, without the checks of loading it."""
    return compile_op(builder)


def reasons(builder: CUDAOpBuilder) -> str:
    return str(decision(builder).rejection)


@cpu_torch_only
def test_a_kernel_and_its_binding_compile_without_a_cuda_torch(increment: IncrementBuilder) -> None:
    entry = compiled(increment)
    assert entry.manifest.kind == "accel"
    assert entry.manifest.check.startswith("undefined symbols only")
    assert entry.manifest.key_parts["cuda archs"] == "9.0"
    content = entry.artifact.read_bytes()
    assert set(re.findall(rb"-arch (sm_\d+[af]?)", content)) == {b"sm_90"}, "as ptxas notes it in the binary"
    assert str(increment.directory).encode() not in content
    ours = {f"torch_c/{name}.h" for name in ("boxed", "errors", "functions", "library", "tensor")}
    headers = {header.path for header in entry.manifest.headers if header.root != "torch"}
    assert headers == {"increment.h", *ours}
    assert find_cached(increment) == entry
    needed = subprocess.run(["readelf", "-d", str(entry.artifact)], capture_output=True, text=True, check=True).stdout
    assert "libcudart" not in needed


@cpu_torch_only
def test_on_a_cpu_torch_the_op_is_incompatible_with_reason_and_remedy(increment: IncrementBuilder) -> None:
    assert increment.is_compatible() is False
    assert "build without CUDA" in str(increment.error_log)
    with pytest.raises(IncompatibleOpError, match="build without CUDA") as caught:
        increment.load()
    assert "Install a CUDA build of torch" in caught.value.remedy
    assert increment.cache.entries() == []
    facts = lookup(increment)
    failed = {failure.name for failure in failures([*facts.build_checks, *facts.load_checks])}
    assert failed == {"CUDA device"}, "the toolkit itself works"


def test_an_undefined_symbol_is_a_load_error(tmp_path: Path, cache: Cache) -> None:
    kernel = KERNEL.replace("namespace {", "int nobody_has_this();\nnamespace {", 1)
    builder = make_increment(tmp_path / "op", cache, kernel.replace("threads = 256", "threads = nobody_has_this()"))
    with pytest.raises(LoadError, match="nobody_has_this") as caught:
        compiled(builder)
    assert caught.value.remedy
    assert cache.entries() == []


def test_clang_of_ziglang_is_refused_as_the_host_compiler(
    increment: IncrementBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = find_cxx(increment.cache.memo)._replace(path="/site/ziglang/zig")
    monkeypatch.setattr("op_builder.toolchains.checks.find_cxx", lambda _: packaged)
    with env.scope(CXX=None):
        assert "/site/ziglang/zig compiles with libc++, which CUDA's headers refuse" in reasons(increment)


def test_without_a_toolkit_the_op_says_how_to_get_one(
    increment: IncrementBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("op_builder.toolchains.cuda.USUAL_HOME", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "g++").symlink_to(str(shutil.which("g++")))
    with env.scope(PATH=str(tmp_path / "bin"), CUDA_HOME=None, CUDA_PATH=None):
        assert not increment.is_compatible()
        with pytest.raises((IncompatibleOpError, MissingCUDAException), match="No CUDA toolkit") as caught:
            increment.load()
        assert "CUDA_HOME" in caught.value.remedy
        with pytest.raises(MissingCUDAException, match="'increment' needs CUDA"):
            installed_cuda_version("increment")


# Functions about architectures for authors -----------------------------------------------------


def tensor_cores(ccs: list[str]) -> list[str]:
    return [cc for cc in ccs if int(cc.split(".")[0]) >= 8]


def tensor_cores_in_pairs(ccs: list[str]) -> list[list[str]]:
    """As other builder classes return them."""
    return [cc.split(".") for cc in tensor_cores(ccs)]


@pytest.mark.parametrize("filter_ccs", [tensor_cores, tensor_cores_in_pairs])
def test_both_answers_of_filter_ccs_count(increment: IncrementBuilder, filter_ccs: Any) -> None:
    increment.filter_ccs = filter_ccs  # type: ignore[method-assign]
    with env.scope(TORCH_CUDA_ARCH_LIST="7.5 8.6 9.0a+PTX"):
        assert increment.plan().cuda_archs == ("8.6", "9.0a+PTX")
        assert increment.compute_capability_args() == [
            "-gencode=arch=compute_86,code=sm_86",
            "-gencode=arch=compute_90a,code=sm_90a",
            "-gencode=arch=compute_90a,code=compute_90a",
        ]
    with env.scope(TORCH_CUDA_ARCH_LIST="7.5"):
        assert "supports none of the requested CUDA architectures (7.5)" in reasons(increment)
        with pytest.raises(MissingCUDAException, match=r"7\.5"):
            increment.compute_capability_args()


def test_ops_on_torchs_cxx_api_have_the_operators_of_half(tmp_path: Path, cache: Cache) -> None:
    flags = type("HalfBuilder", (CUDAOpBuilder, TorchBuilder), {})(tmp_path, cache).nvcc_args()
    assert "-U__CUDA_NO_HALF_OPERATORS__" in flags


@pytest.mark.parametrize(
    ("archs", "known"), [("8.0;9.0", True), ("7.5;8.0", False), ("7.5", False), ("12.0+PTX", True)]
)
def test_bfloat16_is_enabled_when_every_architecture_knows_it(
    increment: IncrementBuilder, archs: str, known: bool
) -> None:
    increment.compute_capability_args(cross_compile_archs=archs)
    assert increment.enable_bf16 is known


@pytest.mark.parametrize(
    ("flags", "own"),
    [
        (["-gencode=arch=compute_80,code=sm_80"], True),
        (["-gencode", "arch=compute_80,code=sm_80"], True),
        (["--generate-code=arch=compute_80,code=sm_80"], True),
        (["-arch=sm_80"], True),
        (["--gpu-architecture=sm_80"], True),
        (["-O3", "-DNO_ARCH", "-Darch=1", "-I/home/archie/search", "-Xcompiler=-march=x86-64-v3"], False),
        (["-Xcompiler", "-march=x86-64-v3"], False),
        ([], False),
    ],
)
def test_architecture_flags_of_the_builder_stand_alone(
    increment: IncrementBuilder, flags: list[str], own: bool
) -> None:
    increment.kernel_flags = flags
    assert names_archs(increment.nvcc_args()) is own
    assert increment.plan().cuda_archs == (() if own else ("9.0",))


def test_the_toolkits_version_and_its_default_architectures() -> None:
    version = installed_cuda_version()
    output = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    assert f"release {version[0]}.{version[1]}," in output
    defaults = get_default_compute_capabilities()
    assert re.fullmatch(r"\d+\.\d(;\d+\.\d)*\+PTX", defaults)


@cpu_torch_only
def test_a_cpu_torch_fits_no_toolkit() -> None:
    with pytest.raises(CUDAMismatchException, match="without CUDA"):
        assert_no_cuda_mismatch("increment")


@pytest.mark.parametrize("guess", [".", "missing"])
def test_the_extension_has_the_plans_flags_and_the_toolkits_headers(
    increment: IncrementBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guess: str
) -> None:
    """A CUDA build of torch sets CUDA_HOME at import to the parent of the directory of nvcc, perhaps a wrapper's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path / guess))
    with env.scope(CUDA_HOME=None, CUDA_PATH=None):
        extension, plan = increment.builder(), increment.plan()
    assert extension.name == "op_builder.increment"
    assert [Path(name).name for name in extension.sources] == ["binding.cpp", "increment.cu"]
    assert set(plan.cxx_flags) <= set(extension.extra_compile_args["cxx"])
    nvcc_flags = {*plan.nvcc_flags, "-gencode=arch=compute_90,code=sm_90"}
    assert nvcc_flags <= set(extension.extra_compile_args["nvcc"])
    assert any(Path(name, "cuda_runtime.h").is_file() for name in extension.include_dirs)


@cpu_torch_only
@pytest.mark.parametrize(("names", "failing"), [(["a.cpp", "b.cu"], ["CUDA device"]), (["a.cpp"], [])])
def test_cuda_sources_of_a_builder_for_the_cpu_need_a_torch_with_cuda(
    tmp_path: Path, cache: Cache, names: list[str], failing: list[str]
) -> None:
    builder = TorchBuilder(tmp_path, cache)
    builder.files = names
    for name in names:
        (tmp_path / name).touch()
    assert [check.name for check in failures(builder.check())] == failing
