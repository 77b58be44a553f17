"""The hooks that frontends call, on a small project, without an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import op_builder
from op_builder import env
from tests.support.environments import bare_environment, link

ROOT = Path(op_builder.__file__).parents[1]
PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "accel_ops_build"
[project]
name = "acme-ops"
version = "1.2"
[tool.setuptools]
packages = ["acme_ops"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "acme_ops").mkdir(parents=True)
    (directory / "acme_ops" / "__init__.py").touch()
    (directory / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "out").mkdir()
    return directory


def call(
    hook: str, project: Path, python: Path = Path(sys.executable), **variables: str
) -> subprocess.CompletedProcess[str]:
    unset = {name: None for name in os.environ if name.startswith("ACCEL_BUILD_")}
    return subprocess.run(
        [python, "-c", f"import accel_ops_build; print('returned', accel_ops_build.{hook})"],
        cwd=project,
        env=env.child_environment(**{"PYTHONPATH": str(ROOT / "build_tools"), **unset, **variables}),
        capture_output=True,
        text=True,
        check=False,
    )


def ops_below(package: Path) -> Path:
    place = package / "_prebuilt"
    place.mkdir(parents=True)
    (place / "left.so").touch()
    return place


def test_without_a_request_nothing_but_setuptools_is_needed(project: Path) -> None:
    for variables in ({}, {"ACCEL_BUILD_OPS": "0", "ACCEL_BUILD_ACME": "off", "ACCEL_BUILD_TORCH": "/nowhere"}):
        done = call("get_requires_for_build_wheel()", project, **variables)
        assert done.stdout.endswith("\nreturned []\n"), done.stderr


@pytest.mark.parametrize("has_torch", [False, True])
def test_without_accel_ops_a_request_is_an_error_and_nothing_is_asked_of_an_index(
    project: Path, tmp_path: Path, has_torch: bool
) -> None:
    environment = bare_environment(tmp_path / "venv")
    for prefix in ("setuptools", "_distutils_hack"):
        link(prefix, environment)
    site, python = environment.site, environment.python
    if has_torch:
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").touch()
    for hook in ("get_requires_for_build_wheel()", "get_requires_for_build_editable()", "build_wheel('../out')"):
        done = call(hook, project, python, ACCEL_BUILD_ACME="1")
        where = f"with torch in {site / 'torch'}" if has_torch else "here"
        assert f"accel-ops, which builds them, is not installed {where}." in done.stderr
        assert "Remedy: Install torch and accel-ops first." in done.stderr
        assert "returned" not in done.stdout
    assert "returned acme_ops-1.2-py3-none-any.whl" in call("build_wheel('../out')", project, python).stdout


def test_the_users_own_settings_of_setuptools_stay(project: Path, tmp_path: Path) -> None:
    settings = tmp_path / "own.cfg"
    settings.write_text(f"[egg_info]\ntag_build = +own\n[build]\nbuild_base = {tmp_path / 'mine'}\n")
    hooks = (
        "prepare_metadata_for_build_wheel('../out'), accel_ops_build.build_wheel('../out'), __import__('os').environ"
    )
    done = call(hooks, project, DIST_EXTRA_CONFIG=str(settings))
    assert "returned acme_ops-1.2+own.dist-info acme_ops-1.2+own-py3-none-any.whl" in done.stdout, done.stderr
    assert f"'DIST_EXTRA_CONFIG': '{settings}'" in done.stdout
    assert not (tmp_path / "mine").exists()


def test_an_editable_install_removes_the_ops_of_its_own_project_alone(project: Path, tmp_path: Path) -> None:
    own = [ops_below(project / name) for name in ("acme_ops", "src/acme_ops", "acme_ops/deep")]
    others = [ops_below(project / name) for name in ("accel-ops/op_builder", "other", "venv/lib/site/acme_ops")]
    done = call("build_editable('../out')", project)
    assert done.returncode == 0, done.stderr
    assert not [place for place in own if place.exists()]
    assert not [place for place in others if not place.exists()]
    assert len(list((tmp_path / "out").glob("acme_ops-1.2*.whl"))) == 1


def test_an_editable_install_for_another_platform_is_refused(project: Path, tmp_path: Path) -> None:
    done = call("build_editable('../out')", project, ACCEL_BUILD_TARGET="linux_aarch64")
    assert "An editable install is for this machine" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.whl"))


def test_ops_in_a_package_that_cannot_be_changed_are_an_error_with_a_remedy(project: Path) -> None:
    (project / "acme_ops" / "_prebuilt").touch()
    done = call("build_editable('../out')", project)
    assert done.returncode != 0
    assert "keeps its ops in the project's packages, which are not writable: " in done.stderr
    assert "Remedy: Make them writable, or install without -e." in done.stderr
    assert "Traceback" not in done.stderr
