"""What one ``load()`` does: how often it plans, computes a key and looks up, and which modules it imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.compilers import needs_gxx
from tests.support.foreign_package import python

# docs/architecture.md gives the reasons.
NOT_FOR_A_WARM_LOAD = (
    "op_builder.engine.",
    "op_builder.report",
    "op_builder.prebuild",
    "op_builder.builder.cuda",
    "op_builder.builder.sycl",
    "op_builder.builder.inline",
    "op_builder.builder.extension",
    "op_builder.catalog.gpu_builders",
    "op_builder.catalog.registered_ops",
    "op_builder.load.decision",
    "op_builder.load.prebuilt",
    *(f"op_builder.cache.{name}" for name in ("bundle", "compare", "depfiles", "eviction", "removal", "staging")),
    *(f"op_builder.toolchains.{name}" for name in ("checks", "compiler_probe", "cuda", "diagnose", "probes", "sycl")),
)


def followed(builder: str, **variables: str) -> dict[str, Any]:
    done = python("-m", "tests.support.followed_load", builder, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_gxx
def test_a_load_plans_once_computes_one_key_and_looks_up_once(tmp_path: Path) -> None:
    cold = followed("PinMemoryBuilder", ACCEL_CACHE_DIR=str(tmp_path / "cache"))
    # The engine looks once more, under its lock: another process may have built the op since.
    assert cold["counts"] == {"plan": 1, "key": 1, "look-up": 2}
    warm = followed("PinMemoryBuilder", ACCEL_CACHE_DIR=str(tmp_path / "cache"), ACCEL_JIT="0")
    assert warm["counts"] == {"plan": 1, "key": 1, "look-up": 1}
    print(f"warm load(): {len(warm['files'])} files, {len(warm['functions'])} functions")


@needs_gxx
def test_a_warm_load_imports_no_module_that_it_does_not_need(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    followed("PinMemoryBuilder", ACCEL_CACHE_DIR=cache)
    warm = followed("PinMemoryBuilder", ACCEL_CACHE_DIR=cache, ACCEL_JIT="0")
    print("\n".join(warm["modules"]))
    assert [name for name in warm["modules"] if name.startswith(NOT_FOR_A_WARM_LOAD)] == []


@pytest.mark.parametrize("package", ["accelerator", "op_builder", "op_builder.cpu"])
def test_the_import_of_a_package_imports_no_torch(package: str) -> None:
    done = python("-c", f"import sys, {package}; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
