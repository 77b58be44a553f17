from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder import Binding, env, load_inline
from op_builder.builder.inline import inline_texts, recipe_spec
from op_builder.cache.store import Cache
from op_builder.errors import ArgumentError, IncompatibleOpError, LoadError
from op_builder.load.load import load
from op_builder.recipe import Recipe
from op_builder.toolchains.tvm_ffi import tvm_ffi_library
from tests.support.builds import compile_spec
from tests.support.foreign_package import ROOT, output_of
from tests.support.small_ops import SmallBuilder

pytestmark = pytest.mark.usefixtures("own_cache")

SOURCE = """
#include <tvm/ffi/tvm_ffi.h>

static void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  if (x.numel() != out.numel()) TVM_FFI_THROW(ValueError) << "add_one: the sizes differ";
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(out.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] + 1;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, add_one);
"""

KERNEL = """
__global__ void fill(float* data, float value) { data[threadIdx.x] = value; }
void fill_with(tvm::ffi::TensorView x, double value) {
  cudaStream_t stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  fill<<<1, x.numel(), 0, stream>>>(static_cast<float*>(x.data_ptr()), value);
}
"""


class AddOneBuilder(SmallBuilder):
    NAME = "add_one"
    BINDING = Binding.TVM_FFI


@pytest.fixture
def tvm_ffi() -> Any:
    return pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")


@pytest.fixture
def add_one(tmp_path: Path, cache: Cache) -> AddOneBuilder:
    (tmp_path / "small.cpp").write_text(SOURCE)
    return AddOneBuilder(tmp_path, cache)


def test_the_exported_functions_of_a_source(add_one: AddOneBuilder, tvm_ffi: Any) -> None:
    module = add_one.load()
    assert isinstance(module, tvm_ffi.Module)
    out = torch.empty(5)
    module.add_one(torch.arange(5.0), out)
    assert torch.equal(out, torch.arange(5.0) + 1)
    with pytest.raises(ValueError, match="the sizes differ"):
        module.add_one(torch.ones(2), out)
    assert add_one.load() is module
    (entry,) = add_one.cache.entries("add_one")
    assert entry.manifest.key_parts["library tvm_ffi"] == tvm_ffi.__version__
    assert (entry.manifest.torch_needed, entry.manifest.python_needed) == ("any", "any")
    assert str(Path(tvm_ffi.__file__).parent).encode() not in entry.artifact.read_bytes()


def test_an_edited_source_loads_next_to_the_old_one(add_one: AddOneBuilder, tvm_ffi: Any) -> None:  # noqa: ARG001
    before = add_one.load()
    (add_one.directory / "small.cpp").write_text(SOURCE.replace("+ 1", "+ 2"))
    out = torch.empty(1)
    for module, value in ((add_one.load(), 2), (before, 1)):
        module.add_one(torch.zeros(1), out)
        assert out.item() == value


def test_the_example_in_the_documentation(tvm_ffi: Any) -> None:  # noqa: ARG001
    page = (ROOT / "docs" / "extending.md").read_text()
    (code,) = (text for text in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "Binding.TVM_FFI" in text)
    for variables in ({}, {"ACCEL_JIT": "0", "PATH": "/nowhere"}):
        output_of("-c", code, **variables)


def test_functions_and_texts_of_load_inline(tvm_ffi: Any) -> None:  # noqa: ARG001
    text = "int64_t twice(int64_t x) { return 2 * x; }"
    assert load_inline("given", text, functions={"twice": 'Says "2".'}, binding=Binding.TVM_FFI).twice(4) == 8
    with pytest.raises(LoadError, match="TVM_FFI_DLL_EXPORT_TYPED_FUNC"):
        load_inline("given", text, binding=Binding.TVM_FFI)
    with pytest.raises(ArgumentError, match="binding is 'tvm_ffi'"):
        load_inline("given", text, functions="twice", binding="tvm_ffi")  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_a_cuda_text_needs_no_cuda_build_of_torch(tvm_ffi: Any) -> None:  # noqa: ARG001
    declared = "void fill_with(tvm::ffi::TensorView x, double value);"
    texts = inline_texts("filled", declared, KERNEL, "fill_with", binding=Binding.TVM_FFI)
    spec = recipe_spec(Recipe("filled", Binding.TVM_FFI, (), texts))
    with env.scope(TORCH_CUDA_ARCH_LIST=None if torch.cuda.is_available() else "9.0"):
        entry = compile_spec(spec, Cache())
        assert entry.manifest.check == "loaded in a child process with libtvm_ffi.so"
        if torch.cuda.is_available():
            x = torch.empty(8, device="cuda")
            load(spec, Cache()).fill_with(x, 3.0)
            assert x.tolist() == [3.0] * 8


def test_setuptools_gets_its_headers_and_its_library(add_one: AddOneBuilder, tvm_ffi: Any) -> None:
    extension = add_one.builder()
    place = str(Path(tvm_ffi.__file__).parent)
    assert any(path.startswith(place) for path in extension.include_dirs)
    assert any(path.startswith(place) for path in extension.library_dirs)
    assert "tvm_ffi" in extension.libraries
    assert "torch_python" not in extension.libraries


def test_without_the_package_the_builder_is_unavailable(
    add_one: AddOneBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    tvm_ffi_library.cache_clear()
    assert not add_one.is_compatible()
    with pytest.raises(IncompatibleOpError, match="pip install apache-tvm-ffi"):
        add_one.load()
