"""Wheel, sdist and editable install without ops, each into an environment of its own that has the torch of this one."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.environments import (
    ROOT,
    Environment,
    bare_environment,
    copy_sources,
    files_in,
    make_environment,
    run,
    shared,
    the_wheel,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory, tmp_path / "accel-ops")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain wheel, made where neither torch nor a compiler is."""

    def build(directory: Path) -> None:
        tree = copy_sources(tmp_path_factory, directory / "accel-ops")
        environment = bare_environment(directory / "environment")
        log = environment.pip(
            "wheel", "-v", "--no-deps", "-w", directory, tree, PATH=str(environment.programs), CXX=None
        )
        (directory / "log").write_text(log)

    return the_wheel(shared(tmp_path_factory, "plain-wheel", build))


def test_the_plain_wheel_was_built_without_torch_and_without_a_word_of_ops(wheel: Path) -> None:
    environment, log = Environment(wheel.parent / "environment"), (wheel.parent / "log").read_text()
    assert "No module named 'torch'" in environment.run("-c", "import torch", fails=True)
    assert "Successfully built accel-ops" in log
    assert "op_builder:" not in log
    assert not re.search(r"(Collecting|Downloading|Processing) \S*(torch|ninja)\b", log)


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
print(json.dumps({"file": op_builder.__file__, "value": p[0].item()}))
"""


def works_installed(environment: Environment) -> Path:
    """Load and run an op, and the report; where ``op_builder`` was imported from."""
    used = json.loads(environment.run("-c", USE).splitlines()[0])
    assert used["value"] == pytest.approx(0.9)
    row = environment.report()["cpu_adam"]
    assert row["compatible"]
    assert row["cached"]
    assert not row["installed"]
    return Path(used["file"])


def test_the_wheel_holds_packages_sources_and_licence_and_nothing_else(tree: Path, wheel: Path) -> None:
    names = set(files_in(wheel))
    assert wheel.name.startswith("accel_ops-")
    assert wheel.name.endswith("-py3-none-any.whl")
    expected = {
        f"op_builder/_native/{path.relative_to(tree).as_posix()}"
        for directory in ("csrc", "kernels_sycl")
        for path in (tree / directory).rglob("*")
        if path.is_file()
    }
    assert expected, "the checkout has native sources"
    assert expected <= names
    assert {"op_builder/py.typed", "accelerator/py.typed"} <= names
    licences = {name.partition(".dist-info/licenses/")[2] for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY_NOTICES.md"}
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"accelerator", "op_builder"}
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_the_wheel_names_its_version_requirements_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    from op_builder import __version__

    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nRequires-Dist: torch>=2.10\n" in metadata


def test_the_citation_has_what_its_format_requires_and_no_second_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    keys = dict(line.split(":", 1) for line in lines if line[:1].isalpha())
    assert {"cff-version", "message", "title", "authors"} <= set(keys)
    assert (keys["cff-version"].strip(), keys["license"].strip()) == ("1.2.0", "Apache-2.0")
    assert "version" not in keys  # op_builder/_version.py has it


def test_an_installed_wheel_loads_an_op_and_reports(wheel: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv")
    environment.pip("install", wheel)
    used = works_installed(environment)
    assert used.is_relative_to(environment.site)


def test_an_editable_install_follows_the_tree(tree: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv")
    environment.pip("install", "-e", tree)
    assert works_installed(environment) == tree / "op_builder" / "__init__.py"
    (tree / "op_builder" / "_version.py").write_text('__version__ = "77.0"\n')
    told = environment.run("-c", "import op_builder; print(op_builder.__version__)")
    assert told.strip() == "77.0"


def test_a_wheel_from_the_sdist_holds_the_same_files(tree: Path, wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, tree, cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "LICENSE").is_file()
    run(sys.executable, "-m", "pip", "wheel", unpacked, "--no-deps", "-w", tmp_path, cwd=tmp_path)
    again = the_wheel(tmp_path)
    assert again.name == wheel.name
    assert files_in(again) == files_in(wheel)


def files_of(tree: Path) -> set[str]:
    """All but the bytecode of the backend, which the frontend imports before that can say no."""
    names = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith("build_tools/__pycache__/")}


def test_a_build_leaves_nothing_in_the_checkout_and_takes_nothing_that_is_gone(tree: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv")
    extra = tree / "op_builder" / "extra_module.py"
    extra.touch()
    before = files_of(tree)
    environment.pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "first", tree)
    assert files_of(tree) == before
    assert "op_builder/extra_module.py" in files_in(the_wheel(tmp_path / "first"))
    extra.unlink()
    environment.pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "second", tree)
    assert "op_builder/extra_module.py" not in files_in(the_wheel(tmp_path / "second"))


def test_a_plain_wheel_never_takes_in_what_an_editable_install_left(tree: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv")
    left = tree / "op_builder" / "_prebuilt" / "ops" / "left.so"
    left.parent.mkdir(parents=True)
    left.touch()
    environment.pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "plain", tree)
    assert not [name for name in files_in(the_wheel(tmp_path / "plain")) if "_prebuilt" in name]
    setup = tree / "setup.py"
    setup.write_text(setup.read_text().replace('"op_builder": ["py.typed"]', '"op_builder": ["py.typed", "**/*.so"]'))
    told = environment.pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "broad", tree, fails=True)
    assert "package data takes in what an editable install left: op_builder/_prebuilt/ops/left.so" in told
