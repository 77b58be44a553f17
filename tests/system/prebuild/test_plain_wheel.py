"""Wheel, sdist and editable install without ops, in environments that have the torch of this one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from op_builder import __version__
from tests.support.environments import Environment, files_in, the_wheel

pytestmark = pytest.mark.slow

USE = """
import json
import torch
import accelerator, op_builder
from accelerator import get_accelerator
op = get_accelerator().create_op_builder("CPUAdamBuilder").load()
p, g, m, v = torch.ones(9), torch.ones(9), torch.zeros(9), torch.zeros(9)
op.create_adam(0)
op.adam_update(0, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, p, g, m, v)
op.destroy_adam(0)
print(json.dumps({"file": op_builder.__file__, "value": p[0].item(), "version": op_builder.__version__}))
"""


def test_the_plain_wheel_is_built_without_torch_and_logs_nothing_of_ops(plain_wheel: Path) -> None:
    environment, log = Environment(plain_wheel.parent / "environment"), (plain_wheel.parent / "log").read_text()
    assert "No module named 'torch'" in environment.run("-c", "import torch", fails=True)
    assert "Successfully built accel-ops" in log
    assert "op_builder:" not in log
    assert not re.search(r"(Collecting|Downloading|Processing) \S*(torch|ninja)\b", log)


def test_the_wheel_has_packages_sources_licence_and_nothing_else(tree: Path, plain_wheel: Path) -> None:
    files = files_in(plain_wheel)
    assert re.fullmatch(r"accel_ops-.*-py3-none-any\.whl", plain_wheel.name)
    expected = {
        f"op_builder/_native/{path.relative_to(tree).as_posix()}"
        for directory in ("csrc", "kernels_sycl")
        for path in (tree / directory).rglob("*")
        if path.is_file()
    }
    assert expected, "the checkout has native sources"
    assert {*expected, "op_builder/py.typed", "accelerator/py.typed"} <= set(files)
    licences = {name.partition(".dist-info/licenses/")[2] for name in files} - {""}
    assert licences == {"LICENSE", "THIRD_PARTY_NOTICES.md"}
    tops = {name.split("/")[0] for name in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"accelerator", "op_builder", "accel_ops.pth"}
    assert not [name for name in files if name.endswith((".so", ".pyc"))]
    (metadata,) = (content.decode() for name, content in files.items() if name.endswith(".dist-info/METADATA"))
    for line in (
        f"Version: {__version__}",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        "Requires-Dist: torch>=2.10",
    ):
        assert f"\n{line}\n" in metadata


def test_an_installed_wheel_and_an_editable_install_load_an_op_and_report(
    plain_wheel: Path, tree: Path, environment: Environment
) -> None:
    def used() -> dict[str, object]:
        result = dict(json.loads(environment.run("-c", USE).splitlines()[0]))
        assert result["value"] == pytest.approx(0.9)
        return result

    environment.pip("install", "--no-deps", plain_wheel)
    assert Path(str(used()["file"])).is_relative_to(environment.site)
    row = environment.report()["cpu_adam"]
    assert (row["compatible"], row["cached"], row["installed"]) == (True, True, False)
    load = "from torch.utils.cpp_extension import load; print(load.__module__)"
    assert environment.run("-c", load).split()[0] == "torch.utils.cpp_extension"

    environment.pip("install", "--no-deps", "--no-build-isolation", "-e", tree)
    (tree / "op_builder" / "_version.py").write_text('__version__ = "77.0"\n')
    result = used()
    assert (result["file"], result["version"]) == (str(tree / "op_builder" / "__init__.py"), "77.0")
    assert "op_builder.cpp_extension" in environment.run("-c", load, ACCEL_CPP_EXTENSION="1").split()


def test_a_build_leaves_nothing_in_the_checkout_and_takes_in_nothing_that_an_earlier_one_left(
    tree: Path, tmp_path: Path, with_torch: Environment
) -> None:
    def wheel(name: str, fails: bool = False) -> str:
        return with_torch.pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / name, tree, fails=fails)

    def files() -> set[str]:
        names = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
        return {name for name in names if not name.startswith("build_tools/accel_ops_build/__pycache__/")}

    extra, left = tree / "op_builder" / "extra_module.py", tree / "op_builder" / "_prebuilt" / "ops" / "left.so"
    left.parent.mkdir(parents=True)
    for path in (extra, left):
        path.touch()
    before = files()
    wheel("first")
    assert files() == before
    first = files_in(the_wheel(tmp_path / "first"))
    assert "op_builder/extra_module.py" in first
    assert not [name for name in first if "_prebuilt" in name]
    extra.unlink()
    setup = tree / "setup.py"
    setup.write_text(setup.read_text().replace('"op_builder": ["py.typed"]', '"op_builder": ["py.typed", "**/*.so"]'))
    assert "an op of an editable install: op_builder/_prebuilt/ops/left.so" in wheel("second", fails=True)
    left.unlink()
    wheel("second")
    assert "op_builder/extra_module.py" not in files_in(the_wheel(tmp_path / "second"))
