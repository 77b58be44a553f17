"""The wheel without ops. The tutorials and the documented commands use an installed one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from op_builder import __version__
from tests.support.environments import Environment, files_in, the_wheel

pytestmark = pytest.mark.slow


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
