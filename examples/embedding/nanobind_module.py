"""A CPython module of nanobind, for anything with the buffer protocol. Needs the package nanobind."""

from __future__ import annotations

import importlib.util
import os
from array import array
from pathlib import Path
from types import ModuleType

import nanobind

from op_builder.engine import Binding, BuiltLibrary, Recipe, build_library


def built(cache_root: Path | None = None) -> BuiltLibrary:
    nanobind_sources = Path(nanobind.source_dir())
    recipe = Recipe(
        "scaling",  # also the name in NB_MODULE
        Binding.PYTHON,
        sources=(str(Path(__file__).with_name("scaling.cpp")), str(nanobind_sources / "nb_combined.cpp")),
        include_dirs=(nanobind.include_dir(), str(nanobind_sources.parent / "ext" / "robin_map" / "include")),
        cxx_flags=("-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG"),
    )
    return build_library(recipe, cache_root=cache_root)


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, os.fspath(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(library: BuiltLibrary) -> list[float]:
    values = array("f", [1, 2, 3])
    imported(library.path).scale(values, factor=2)
    return list(values)
