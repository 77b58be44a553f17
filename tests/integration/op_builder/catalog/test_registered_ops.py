from __future__ import annotations

import json
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

import op_builder
from accelerator.cpu_accelerator import CPU_Accelerator
from op_builder import build, env
from op_builder.catalog.named import find_op
from op_builder.catalog.registered_ops import RegisteredPackage
from op_builder.catalog.registry import all_builders, find_builder, registered_packages
from op_builder.errors import UnknownOpError
from op_builder.report.__main__ import main as report_main
from op_builder.report.render import print_report
from tests.support.builds import row_of
from tests.support.foreign_package import install, output_of
from tests.support.small_ops import ACME_ADD, STABLE_SOURCE

CPU = "op_builder.cpu"

SCALE = ACME_ADD.replace("Add", "Scale").replace("acme_add", "acme_scale").replace("kernels/add", "kernels/scale")


def declared(class_name: str, op: object, members: str = "") -> str:
    """A module that declares one op."""
    return (
        f"from op_builder import CPUOpBuilder\n\nclass {class_name}(CPUOpBuilder):\n    NAME = {op!r}\n\n"
        f"    def sources(self):\n        return ['kernels/scale.cpp']\n{textwrap.indent(members, '    ')}\n\n"
    )


class Site:
    """Installed packages that register ops, each in a directory of its own on the path."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def install(self, label: str, value: str, files: dict[str, str]) -> str:
        """Install ``files`` under a module name of its own; ``{module}`` in ``value`` and the texts stands for it."""
        module = f"acme_{uuid.uuid4().hex}"
        texts = {path.format(module=module): text.replace("{module}", module) for path, text in files.items()}
        entry_points = f"[op_builder.ops]\n{label} = {value.format(module=module)}\n"
        install(self.directory(module), module, texts, entry_points)
        sys.path.insert(0, str(self.directory(module)))
        return module

    def install_module(self, text: str, label: str = "acme") -> str:
        return self.install(label, "{module}", {"{module}.py": text})

    def directory(self, module: str) -> Path:
        return self._root / f"site of {module}"


pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Site(tmp_path)
    for module in [module for module in sys.modules if module.startswith("acme_")]:
        del sys.modules[module]


@pytest.fixture
def acme(site: Site) -> str:
    """The installed package of an author: two ops in the modules of one package."""
    return site.install(
        "acme",
        "{module}.ops",
        {
            "{module}/__init__.py": "",
            "{module}/ops/__init__.py": "",
            "{module}/ops/host.py": SCALE,
            "{module}/ops/device.py": declared("AcmeDeviceBuilder", "acme_device"),
            "{module}/ops/__main__.py": "raise SystemExit('not to be imported')\n",
            "{module}/kernels/scale.cpp": STABLE_SOURCE,
            "{module}/kernels/amount.h": "#define AMOUNT 2.0f\n",
        },
    )


def package(label: str = "acme") -> RegisteredPackage:
    (found,) = (one for one in registered_packages(CPU) if one.label == label)
    return found


def test_a_registered_op_is_found_by_its_builders_name_and_loads(acme: str) -> None:
    cls = find_builder("AcmeScaleBuilder", CPU)
    assert cls.__module__ == f"{acme}.ops.host"
    assert op_builder.AcmeScaleBuilder is cls
    builder = CPU_Accelerator().create_op_builder("AcmeScaleBuilder")
    assert type(builder) is cls
    x = torch.zeros(3)
    builder.load().add_(x)
    assert x.tolist() == [2.0] * 3


def test_the_commands_know_the_ops_and_where_they_come_from(acme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--json", "--force", "AcmeScaleBuilder"]) == 0
    (built,) = json.loads(capsys.readouterr().out)["ops"]
    assert (built["op"], built["status"]) == ("acme_scale", "built")
    assert report_main(["--json", "acme_scale"]) == 0
    assert json.loads(capsys.readouterr().out)["cached"]
    assert report_main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["compatible"] for row in data["ops"]}["acme_scale"]
    mine = {"label": "acme", "module": f"{acme}.ops", "ops": ["acme_device", "acme_scale"], "reasons": []}
    assert mine in data["registered"]
    print_report(data, Console())
    shown = capsys.readouterr().out
    assert "Packages that register ops" in shown
    assert "acme_device, acme_scale" in shown


def test_entry_points_are_read_only_for_other_names(acme: str, site: Site) -> None:
    code = f"""
import sys
from op_builder import CPUAdamBuilder, CCLCommBuilder
from accelerator import get_accelerator
get_accelerator().create_op_builder("CPUAdamBuilder")
assert "op_builder.catalog.registered_ops" not in sys.modules
from op_builder.all_ops import ALL_OPS
assert "acme_scale" in ALL_OPS and "{acme}.ops.host" in sys.modules
"""
    output_of("-c", code, paths=[site.directory(acme)], ACCEL_ACCELERATOR="cpu")


TAKEN = [
    ("MyAdamBuilder", "cpu_adam", "'cpu_adam' belongs to op_builder.cpu.CPUAdamBuilder"),
    ("CPUAdamBuilder", "acme_adam", "'CPUAdamBuilder' belongs to op_builder.cpu"),
    ("TorchCPUOpBuilder", "acme_base", "'TorchCPUOpBuilder' belongs to accel-ops"),
]


@pytest.mark.parametrize(("class_name", "op", "reason"), TAKEN)
def test_a_name_of_this_project_is_refused(
    site: Site, caplog: pytest.LogCaptureFixture, class_name: str, op: str, reason: str
) -> None:
    module = site.install_module(declared(class_name, op) + declared("AcmeGoodBuilder", "acme_good"))
    (problem,) = package().reasons
    assert problem.startswith(f"{module}.{class_name} is ignored: the name {reason}")
    assert list(package().classes) == ["AcmeGoodBuilder"]
    builders = all_builders(CPU)
    assert op not in builders or not type(builders[op]).__module__.startswith("acme_")
    assert find_builder("CPUAdamBuilder", CPU).__module__ == "op_builder.cpu"
    assert [record.getMessage() for record in caplog.records if problem in record.getMessage()] == [
        f"Not all ops of acme ({module}) are registered. {problem}"
    ]


def test_the_first_package_by_label_gets_a_name(site: Site) -> None:
    first = site.install_module(declared("SameBuilder", "same_op"), "a-first")
    late = site.install_module(declared("SameBuilder", "late_op"), "b-late")
    other = site.install_module(declared("OtherBuilder", "same_op") + declared("FreeBuilder", "free_op"), "c-later")
    assert find_builder("SameBuilder", CPU).__module__ == first
    assert f"{late}.SameBuilder is ignored" in package("b-late").reason
    assert f"'SameBuilder' belongs to {first}.SameBuilder" in package("b-late").reason
    assert f"{other}.OtherBuilder is ignored" in package("c-later").reason
    assert type(all_builders(CPU)["same_op"]).__module__ == first
    assert type(all_builders(CPU)["free_op"]).__module__ == other
    assert not package("a-first").reasons


@pytest.mark.parametrize("device", [CPU, "op_builder.cuda", "op_builder.xpu"])
def test_every_device_has_the_registered_ops_after_its_own(acme: str, device: str) -> None:
    modules = {name: type(builder).__module__ for name, builder in all_builders(device).items()}
    assert {*list(modules.items())[-2:]} == {("acme_device", f"{acme}.ops.device"), ("acme_scale", f"{acme}.ops.host")}


def test_a_class_that_is_only_imported_is_not_registered(site: Site) -> None:
    module = site.install_module(
        "from op_builder.cpu import CPUAdamBuilder\n\nclass AcmeAdamBuilder(CPUAdamBuilder):\n    NAME = 'acme_adam'\n"
    )
    assert list(package().classes) == ["AcmeAdamBuilder"]
    assert package().reasons == ()
    assert find_builder("AcmeAdamBuilder", CPU).__module__ == module


ABSTRACT = "from op_builder import OpBuilder\nclass EmptyBuilder(OpBuilder):\n    NAME = 'empty'\n"
BROKEN = {
    "missing driver": ("import acme_missing_driver\n", "{module} cannot be imported: ModuleNotFoundError"),
    "no builder": ("x = 1\n", "{module} has no op"),
    "abstract": (ABSTRACT, "{module}.EmptyBuilder is not an op: it does not define sources()"),
    "no good name": (declared("PathBuilder", "../op"), "PathBuilder is not an op: its NAME is '../op'"),
    "no suffix": (declared("AcmeScale", "op"), "{module}.AcmeScale is not an op: its class name does not end in"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_package_without_ops_is_a_problem_of_that_package_alone(
    acme: str, site: Site, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    text, problem = BROKEN[case]
    module = site.install_module(text, "a-broken")
    problem = problem.format(module=module)
    assert find_builder("AcmeScaleBuilder", CPU).__module__ == f"{acme}.ops.host"
    assert {"cpu_adam", "acme_scale", "acme_device"} <= set(all_builders(CPU))
    for unknown in (lambda: find_builder("MissingBuilder", CPU), lambda: find_op("missing_op")):
        with pytest.raises(UnknownOpError) as caught:
            unknown()
        assert f"Not all ops of a-broken ({module}) are registered. " in caught.value.message
        assert problem in caught.value.message
    assert [problem in record.getMessage() for record in caplog.records].count(True) == 1


def test_only_the_ops_of_a_broken_module_are_missing(acme: str, site: Site) -> None:
    (site.directory(acme) / acme / "ops" / "broken.py").write_text("import acme_missing_driver\n")
    found = package()
    assert list(found.classes) == ["AcmeDeviceBuilder", "AcmeScaleBuilder"]
    assert f"{acme}.ops.broken cannot be imported: ModuleNotFoundError" in found.reason


@pytest.mark.usefixtures("acme")
def test_a_builder_that_cannot_be_created_is_incompatible_with_the_reason(site: Site) -> None:
    fails = "def __init__(self):\n    raise OSError('no /dev/acme')"
    site.install_module(declared("FragileBuilder", "fragile", fails), "fragile")
    row = row_of(all_builders(CPU)["fragile"])
    assert not row.compatible
    assert "no /dev/acme" in row.reason
    assert row.remedy
    assert find_op("acme_scale").name == "acme_scale"


def test_listing_ops_compiles_none_that_a_package_loads_when_it_is_imported(site: Site, tmp_path: Path) -> None:
    files = {
        "{module}/__init__.py": "from {module}.host import AcmeScaleBuilder\nAcmeScaleBuilder().load()\n",
        "{module}/host.py": SCALE,
        "{module}/kernels/scale.cpp": STABLE_SOURCE,
        "{module}/kernels/amount.h": "#define AMOUNT 7.0f\n",
    }
    site.install("acme", "{module}", files)
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "cache")):
        assert "acme_scale" not in all_builders(CPU)
        assert not list((tmp_path / "cache").rglob("*.so"))
        assert find_builder("AcmeScaleBuilder", CPU).NAME == "acme_scale"
        assert "acme_scale" in all_builders(CPU), "it loads from the cache"
