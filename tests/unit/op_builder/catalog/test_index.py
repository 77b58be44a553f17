from __future__ import annotations

import importlib
import os
import pkgutil
import re
from pathlib import Path

import pytest

from op_builder import ops, paths
from op_builder.catalog.builders import UnavailableOpBuilder
from op_builder.catalog.index import BUILDERS, DEEPSPEED_ONLY_OPS, NAMES, families
from op_builder.catalog.registry import OUR_PACKAGES, device_package, find_builder
from op_builder.errors import IncompatibleOpError
from op_builder.spec import OUR_DEVICES, OpFamily
from tests.support.builds import row_of

ROOT = Path(__file__).resolve().parents[4]
NAMES_IN_HOST_MEMORY = "CPUAdam CPUAdagrad CPULion CPULamb CPUSGD AsyncIO PinMemory ShareMemComm CCLComm"
IN_HOST_MEMORY = {f"{name}Builder" for name in NAMES_IN_HOST_MEMORY.split()}
ON_TORCH = {"PackbitsBuilder", "UtilsBuilder"}
FUSED = {"FusedAdamBuilder", "FusedLionBuilder", "FusedLambBuilder"}
AVAILABLE = {
    "op_builder.cpu": IN_HOST_MEMORY | FUSED | ON_TORCH,
    "op_builder.cuda": IN_HOST_MEMORY | FUSED | ON_TORCH,
    "op_builder.xpu": IN_HOST_MEMORY
    | ON_TORCH
    | {"FusedAdamBuilder", "FusedLionBuilder", "BlockQuantizeBuilder", "RMSNormBuilder"},
    # The CPU's fused optimizers could not work on their tensors; Adam is the vendor's or torch's.
    "op_builder.host": IN_HOST_MEMORY | ON_TORCH | {"FusedAdamBuilder"},
}


@pytest.mark.parametrize("package", OUR_PACKAGES)
def test_a_device_package_has_the_builders_of_its_device(package: str) -> None:
    assert set(device_package(package).classes) == AVAILABLE[package]


@pytest.mark.parametrize("package", OUR_PACKAGES)
@pytest.mark.parametrize("op", families(), ids=lambda op: op.name)
def test_every_op_has_a_builder_on_every_device(op: OpFamily, package: str) -> None:
    cls = find_builder(op.builder, package)
    assert cls is find_builder(op.builder, package)
    assert cls is getattr(importlib.import_module(package), op.builder)
    assert (cls.__name__, cls.NAME, cls.BUILD_VAR) == (op.builder, op.name, f"ACCEL_BUILD_{op.name.upper()}")
    if op.builder in AVAILABLE[package]:
        assert not issubclass(cls, UnavailableOpBuilder)
        assert op.builder in dir(importlib.import_module(package))
        return
    builder = cls()
    row = row_of(builder)
    assert (row.compatible, row.installed, row.cached) == (False, False, False)
    for load in (builder.load, builder.jit_load, builder.plan, builder.builder):
        with pytest.raises(IncompatibleOpError) as caught:
            load()
        assert all(re.search(rf"\b{device}\b", caught.value.message) for device in op.devices)
        assert op.builder in caught.value.remedy == row.remedy


@pytest.mark.parametrize("package", OUR_PACKAGES)
@pytest.mark.parametrize("by_file", [False, True], ids=["by path", "by file"])
def test_a_walk_through_a_device_package_finds_every_builder(package: str, by_file: bool) -> None:
    device = importlib.import_module(package)
    found = pkgutil.iter_modules([os.path.dirname(device.__file__)] if by_file else device.__path__)
    modules = [importlib.import_module(f"{package}.{item.name}") for item in found]
    builders = {name: value for module in modules for name, value in vars(module).items() if name.endswith("Builder")}
    assert builders == {name: find_builder(name, package) for name in BUILDERS}


def test_an_op_is_planned_alike_on_every_device_whose_kernels_it_shares() -> None:
    for name in sorted(IN_HOST_MEMORY):
        assert len({find_builder(name, package) for package in OUR_PACKAGES}) == 1


@pytest.mark.parametrize("op", families(), ids=lambda op: op.name)
def test_an_op_is_declared_in_the_module_of_its_name_with_existing_files(op: OpFamily) -> None:
    assert NAMES[op.name] == op.builder
    for device in filter(op.kernels_for, OUR_DEVICES):
        builder = find_builder(op.builder, f"op_builder.{device}")()
        assert all((paths.native_root() / source).is_file() for source in builder.sources())


def test_every_front_end_is_where_the_package_looks_for_it() -> None:
    assert all(callable(getattr(ops, name)) for name in ops.__all__)


def test_the_readme_names_each_op() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for family in families():
        assert f"`{family.name}`" in readme
    template = (ROOT / "examples" / "my_ops" / "pyproject.toml").read_text()
    assert {"OPS", "TARGET", "TORCH"} <= set(re.findall(r'\{ env = "ACCEL_BUILD_(\w+)" \}', template))


def test_the_page_on_deepspeed_lists_each_of_its_builders() -> None:
    text = (ROOT / "docs" / "porting_deepspeed.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+Builder)` \| ([^|]*[^| ]) \|", text, re.MULTILINE))
    ours = {name for name, cell in rows.items() if cell == "this library's"}
    assert ours <= {*BUILDERS}
    kinds = {name: kind for name, (_, kind) in DEEPSPEED_ONLY_OPS.items()}
    assert {name: cell.partition(": ")[2] for name, cell in rows.items() if name not in ours} == kinds
