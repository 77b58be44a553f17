"""An op for the tensors of any framework, through TVM FFI. Needs apache-tvm-ffi, and here numpy for a tensor."""

from __future__ import annotations

from pathlib import Path

import numpy
import tvm_ffi

from op_builder.engine import Binding, BuiltLibrary, Recipe, build_library

TEXT = r"""
#include <tvm/ffi/tvm_ffi.h>

void scale(tvm::ffi::TensorView values, double factor) {
  if (values.device().device_type != kDLCPU || values.dtype() != DLDataType{kDLFloat, 32, 1} || !values.IsContiguous())
    TVM_FFI_THROW(TypeError) << "scale: values must be contiguous float32 on the CPU";
  auto* data = static_cast<float*>(values.data_ptr());
  for (int64_t i = 0; i < values.numel(); ++i) data[i] *= static_cast<float>(factor);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);
"""


def built(cache_root: Path | None = None) -> BuiltLibrary:
    recipe = Recipe("scale_tensor", Binding.TVM_FFI, sources=(), texts={"scale.cpp": TEXT})
    return build_library(recipe, cache_root=cache_root)


def result(library: BuiltLibrary) -> list[float]:
    values = numpy.array([1, 2, 3], numpy.float32)
    tvm_ffi.load_module(str(library.path)).scale(values, 2)
    return [float(value) for value in values]
