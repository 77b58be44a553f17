"""Wheels and environments that the tests here share, each made once in a run of the suite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.environments import (
    ROOT,
    Environment,
    bare_environment,
    copy_sources,
    make_environment,
    run,
    shared,
    the_wheel,
)


@pytest.fixture
def tree(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, for the test to change."""
    return copy_sources(tmp_path_factory, tmp_path / "accel-ops")


@pytest.fixture(scope="session")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with torch and without accel-ops, not to be changed."""

    def make(directory: Path) -> None:
        make_environment(directory / "environment")

    return Environment(shared(tmp_path_factory, "with-torch", make) / "environment")


@pytest.fixture
def environment(with_torch: Environment, tmp_path: Path) -> Environment:
    """A copy of it for the test to change."""
    return with_torch.copy(tmp_path / "venv")


@pytest.fixture(scope="session")
def plain_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without ops, made where neither torch nor a compiler is; with ``environment`` and ``log``."""

    def build(directory: Path) -> None:
        tree = copy_sources(tmp_path_factory, directory / "accel-ops")
        environment = bare_environment(directory / "environment")
        log = environment.pip(
            "wheel", "-v", "--no-deps", "-w", directory, tree, PATH=str(environment.programs), CXX=None
        )
        (directory / "log").write_text(log)

    return the_wheel(shared(tmp_path_factory, "plain-wheel", build))


@pytest.fixture(scope="session")
def ops_wheel(tmp_path_factory: pytest.TempPathFactory, with_torch: Environment) -> Path:
    """The wheel with all host ops, made by ``pip wheel`` in an environment that has torch; with its ``log``."""

    def build(directory: Path) -> None:
        tree = copy_sources(tmp_path_factory, directory / "accel-ops")
        log = with_torch.pip("wheel", "-v", "--no-deps", "-w", directory, tree, ACCEL_BUILD_OPS="1")
        (directory / "log").write_text(log)

    return the_wheel(shared(tmp_path_factory, "ops-wheel", build))


@pytest.fixture(scope="session")
def installed(ops_wheel: Path, with_torch: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with that wheel, not to be changed; without numpy, which needs newer CPUs than torch."""

    def make(directory: Path) -> None:
        with_torch.copy(directory / "environment").pip("install", "--no-deps", ops_wheel)

    return Environment(shared(tmp_path_factory, "installed-wheel", make) / "environment")


@pytest.fixture(scope="session")
def backend_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the build backend, accel-ops-build."""

    def build(directory: Path) -> None:
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", directory, ROOT / "build_tools", cwd=directory)

    return the_wheel(shared(tmp_path_factory, "backend-wheel", build))
