"""From a name to a builder: of this project, of a vendor, unavailable, or unknown."""

from __future__ import annotations

import importlib
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import op_builder
from accelerator import get_accelerator, set_accelerator
from accelerator.cpu_accelerator import CPU_Accelerator
from op_builder import all_ops, builder
from op_builder.builder.base import OpBuilder
from op_builder.catalog.index import DEEPSPEED_ONLY_OPS, NAMES
from op_builder.catalog.registry import OUR_PACKAGES, all_builders, find_builder
from op_builder.errors import IncompatibleOpError, UnknownOpError
from op_builder.ops import CPUAdam
from tests.support.foreign_package import importable, output_of, write_package

BUILDERS_BY_OP = NAMES


pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[str]:
    """A vendor's package: its own ops, an op that extends one of this project, and classes that are not ops."""
    files = {
        "adam.py": """
            from op_builder.cpu import CPUAdamBuilder as Base
            from op_builder.cpu import CPUAdamBuilder as HostAdamBuilder

            class CPUAdamBuilder(Base):
                def cxx_args(self):
                    return [*super().cxx_args(), "-DACME"]
        """,
        "zeta.py": """
            from op_builder.cpu import CPUAdamBuilder
            from op_builder.builder import CPUOpBuilder, OpBuilder

            class AcmeGemmBuilder(CPUOpBuilder):
                BUILD_VAR = "ACME_BUILD_GEMM"
                NAME = "acme_gemm"

                def sources(self):
                    return ["csrc/gemm.cpp"]

            class AcmeBaseBuilder(OpBuilder):  # abstract
                NAME = "acme_base"

            class ConfigBuilder:
                pass
        """,
        "csrc/gemm.cpp": "int gemm() { return 0; }\n",
        "__main__.py": "raise SystemExit('not to be imported')\n",
    }
    name = f"acme_{uuid.uuid4().hex}"  # the builders of a package are cached
    write_package(tmp_path, name, {path: textwrap.dedent(text) for path, text in files.items()})
    with importable(tmp_path, name):
        yield name


@pytest.mark.parametrize("package", OUR_PACKAGES)
@pytest.mark.parametrize("name", DEEPSPEED_ONLY_OPS)
def test_the_names_of_deepspeeds_other_builders_are_known(name: str, package: str) -> None:
    op = find_builder(name, package)()
    op_name, kind = DEEPSPEED_ONLY_OPS[name]
    assert (type(op).__name__, op.name, op.is_compatible()) == (name, op_name, False)
    with pytest.raises(IncompatibleOpError, match=f"{name} of DeepSpeed \\({kind}") as caught:
        op.load()
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ("CPUAdmaBuilder", "CPUAdamBuilder"),
        ("FusedAdam", "Did you mean FusedAdamBuilder?"),
        ("ShmCommBuilder", "ShareMemCommBuilder"),
        ("cpu_sgd", "CPUSGDBuilder"),
        # Without near names, all are listed.
        ("zzz", "CPULambBuilder"),
        ("", "FusedLionBuilder"),
        ("TallBuilder", "Known builders: AsyncIOBuilder"),
    ],
)
def test_an_unknown_name_suggests_the_near_one(wrong: str, remedy: str) -> None:
    with pytest.raises(UnknownOpError, match=f"{wrong!r}") as caught:
        find_builder(wrong, "op_builder.cpu")
    assert isinstance(caught.value, ValueError)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("name", [*BUILDERS_BY_OP.values(), "OpBuilder", "CPUOpBuilder", "CUDAOpBuilder"])
def test_the_package_gives_the_current_accelerators_class(name: str) -> None:
    namespace: dict[str, type] = {}
    exec(f"from op_builder import {name}", namespace)
    assert issubclass(namespace[name], OpBuilder)
    assert namespace[name].__name__ == name


def test_importing_an_unknown_name_suggests_a_near_one() -> None:
    with pytest.raises(UnknownOpError, match="CPUAdamBuilder"):
        op_builder.CPUAdamsBuilder  # noqa: B018
    with pytest.raises(ImportError, match="CPUAdamBuilder"):
        exec("from op_builder import CPUAdamsBuilder")
    with pytest.raises(ImportError, match="CPUAdam"):
        exec("from op_builder import CPUAdam")
    with pytest.raises(AttributeError, match="no attribute 'adam'"):
        op_builder.adam  # noqa: B018


def test_the_class_follows_the_override() -> None:
    code = "from op_builder import FusedAdamBuilder; print(FusedAdamBuilder.__module__)"
    assert output_of("-c", code, ACCEL_ACCELERATOR="cuda").strip() == "op_builder.cuda"
    assert op_builder.FusedAdamBuilder.__module__ != "op_builder.cuda"


def test_all_names_for_authors_can_be_imported() -> None:
    assert all(getattr(builder, name) is not None for name in builder.__all__)
    assert torch.__version__.startswith(f"{builder.TORCH_MAJOR}.{builder.TORCH_MINOR}.")


def test_a_vendors_package_adds_ops(vendor: str) -> None:
    gemm = find_builder("AcmeGemmBuilder", vendor)
    assert gemm.NAME == "acme_gemm"
    builders = all_builders(vendor)
    assert isinstance(builders["acme_gemm"], gemm)
    assert set(BUILDERS_BY_OP) <= set(builders)
    assert "acme_base" not in builders
    assert gemm().plan().sources[0].label == "csrc/gemm.cpp"


def test_a_vendors_own_builder_precedes_one_that_it_imports(vendor: str) -> None:
    cls = find_builder("CPUAdamBuilder", vendor)
    assert cls.__module__ == f"{vendor}.adam"
    assert "-DACME" in cls().plan().cxx_flags
    assert type(all_builders(vendor)["cpu_adam"]) is cls


def test_only_the_builders_of_a_broken_module_are_missing(vendor: str, tmp_path: Path) -> None:
    (tmp_path / vendor / "broken.py").write_text("import acme_driver_that_nobody_has\n")
    importlib.invalidate_caches()
    assert find_builder("AcmeGemmBuilder", vendor).NAME == "acme_gemm"
    with pytest.raises(UnknownOpError, match="acme_driver_that_nobody_has") as caught:
        find_builder("AcmeBrokenBuilder", vendor)
    assert f"{vendor}.broken" in str(caught.value)
    lion = find_builder("CPULionBuilder", vendor)()
    with pytest.raises(IncompatibleOpError, match="acme_driver_that_nobody_has"):
        lion.load()


class TheirAccelerator(CPU_Accelerator):
    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder.cpu"

    def get_op_builder(self, class_name: str) -> Any:
        raise AssertionError(f"DeepSpeed is asked for {class_name}")


@pytest.fixture
def theirs() -> Iterator[None]:
    before = get_accelerator()
    set_accelerator(TheirAccelerator())
    yield
    set_accelerator(before)


@pytest.mark.usefixtures("theirs")
def test_this_librarys_ops_work_where_the_accelerator_is_deepspeeds() -> None:
    assert op_builder.CPUAdamBuilder.NAME == "cpu_adam"
    assert all_ops.ALL_OPS["cpu_adam"].NAME == "cpu_adam"
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    CPUAdam([param], lr=0.5).step()
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.5))


def test_a_class_that_extends_an_op_keeps_what_no_method_gives() -> None:
    cpu, host = importlib.import_module("op_builder.cpu"), importlib.import_module("op_builder.host")

    class OfPython(host.UtilsBuilder):
        pass

    class Unavailable(cpu.GDSBuilder):
        pass

    class OfCCL(cpu.CCLCommBuilder):
        pass

    assert OfPython().is_compatible()
    assert OfPython().load() is host.UtilsBuilder().load()
    assert not Unavailable().is_compatible()
    with pytest.raises(IncompatibleOpError, match="does not have GDSBuilder"):
        Unavailable().load()
    assert OfCCL().plan().libraries == cpu.CCLCommBuilder().plan().libraries
