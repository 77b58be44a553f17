"""Wheel, sdist and editable install, each into a virtual environment of its own, with the torch of this one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from op_builder import env

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command that sees nothing of the checkout but what is installed."""
    environment = env.child_environment(PYTHONPATH=None, PIP_DISABLE_PIP_VERSION_CHECK="1", **variables)
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a clone would have, so that neither build leaves anything in the checkout."""
    directory = tmp_path_factory.mktemp("tree") / "accel-ops"
    if (ROOT / ".git").exists():
        listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
        names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    else:  # an unpacked sdist
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, directory / name)
    return directory


@pytest.fixture(scope="module")
def wheel(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", source_tree, "--no-deps", "-w", built, cwd=built)
    (found,) = built.glob("*.whl")
    return found


def new_environment(directory: Path) -> Path:
    """A virtual environment that sees this interpreter's packages after its own; returns its Python."""
    run(sys.executable, "-m", "venv", "--system-site-packages", directory, cwd=directory.parent)
    python = directory / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=directory).strip())
    # A line of a .pth file adds a directory but none of the .pth files in it: an editable install
    # of this very project in the running environment stays out.
    torch_site = Path(__import__("torch").__file__).resolve().parents[1]
    (site / "running_environment.pth").write_text(f"{torch_site}\n")
    return python


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


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


def works_installed(python: Path, directory: Path) -> Path:
    """Load and run an op, and the report, from an empty directory; where ``op_builder`` was imported from."""
    directory.mkdir()
    variables = {"ACCEL_ACCELERATOR": "cpu", "ACCEL_CACHE_DIR": str(directory.with_name("cache"))}
    used = json.loads(run(python, "-c", USE, cwd=directory, **variables).splitlines()[-1])
    assert used["value"] == pytest.approx(0.9)
    report = json.loads(run(python, "-m", "op_builder.report", "--json", cwd=directory, **variables))
    (row,) = [op for op in report["ops"] if op["name"] == "cpu_adam"]
    assert row["compatible"]
    assert row["cached"]
    return Path(used["file"])


def test_the_wheel_holds_packages_sources_and_licence_and_nothing_else(source_tree: Path, wheel: Path) -> None:
    names = names_in(wheel)
    assert wheel.name.startswith("accel_ops-")
    expected = {
        f"op_builder/_native/{path.relative_to(source_tree).as_posix()}"
        for directory in ("csrc", "kernels_sycl")
        for path in (source_tree / directory).rglob("*")
        if path.is_file()
    }
    assert expected, "the checkout has native sources"
    assert expected <= names
    assert {"op_builder/py.typed", "accelerator/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
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


def test_an_installed_wheel_loads_an_op_and_reports(wheel: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", wheel, cwd=tmp_path)
    used = works_installed(python, tmp_path / "elsewhere")
    assert used.is_relative_to(tmp_path / "venv")


def test_an_editable_install_follows_the_tree(source_tree: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(source_tree, tree)
    python = new_environment(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--no-deps", "-e", tree, cwd=tmp_path)
    assert works_installed(python, tmp_path / "elsewhere") == tree / "op_builder" / "__init__.py"
    (tree / "op_builder" / "_version.py").write_text('__version__ = "77.0"\n')
    told = run(python, "-c", "import op_builder; print(op_builder.__version__)", cwd=tmp_path)
    assert told.strip() == "77.0"


def test_a_wheel_from_the_sdist_holds_the_same_files(source_tree: Path, wheel: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(source_tree, tree)
    make = "import setuptools.build_meta as backend, sys; print(backend.build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", make, tmp_path / "sdist", cwd=tree)
    (archive,) = (tmp_path / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "LICENSE").is_file()
    built = tmp_path / "wheel"
    run(sys.executable, "-m", "pip", "wheel", unpacked, "--no-deps", "-w", built, cwd=tmp_path)
    (again,) = built.glob("*.whl")
    assert names_in(again) == names_in(wheel)
