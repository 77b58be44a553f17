"""A C function for ctypes. Needs Python, ninja, a compiler and accel-ops, and no other package."""

from __future__ import annotations

import ctypes
from pathlib import Path

from op_builder.engine import Binding, BuiltLibrary, Recipe, build_library


def built(cache_root: Path | None = None) -> BuiltLibrary:
    source = Path(__file__).with_name("scale.c")
    recipe = Recipe("scale", Binding.C, sources=(str(source),), cxx_flags=("-O3",))
    return build_library(recipe, cache_root=cache_root)


def result(library: BuiltLibrary) -> list[float]:
    values = (ctypes.c_float * 3)(1, 2, 3)
    ctypes.CDLL(str(library.path)).scale(values, ctypes.c_size_t(len(values)), ctypes.c_float(2))
    return list(values)
