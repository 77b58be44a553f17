"""The Python processes that the engine starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder.errors import IncompatibleOpError
from tests.support.compilers import program
from tests.support.foreign_package import ROOT, output_of
from tests.support.small_ops import ENTRY, OWN_BUILDER, SmallBuilder, added

STANDARD = ("types", "struct", "json", "ctypes", "logging", "importlib", "warnings", "sitecustomize", "usercustomize")
INSTALLED = ("torch", "op_builder", "numpy", "sympy", "typing_extensions", "psutil", "ninja", "packaging", "setuptools")


def test_no_load_and_no_command_imports_from_the_current_directory(tmp_path: Path) -> None:
    for name in (*STANDARD, *INSTALLED):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    script = shutil.copy(ROOT / "tests" / "support" / "every_command.py", scripts)
    for name, text in {"own.py": OWN_BUILDER, "own.cpp": ENTRY}.items():
        (scripts / name).write_text(text)
    output_of(script, cwd=tmp_path, ACCEL_CACHE_DIR=str(tmp_path / "cache"), ACCEL_ACCELERATOR="cpu")
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The application that this process is said to be; nothing starts it."""
    path = program(tmp_path / "application" / "app", f"touch {tmp_path / 'started'}")
    monkeypatch.setattr("sys.executable", str(path))
    yield path
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.usefixtures("application")
def test_an_application_is_not_started_where_an_interpreter_is_installed(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    monkeypatch.setattr("sys.frozen", frozen, raising=False)
    assert added(small.load()) == 1.0


def test_an_application_without_an_interpreter_is_refused_with_the_reason(
    small: SmallBuilder, application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys._base_executable", str(application))
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(f"sys.{name}", str(application.parent))
    assert not small.is_compatible()
    with pytest.raises(IncompatibleOpError, match=r"inside an application .*/app") as caught:
        small.load()
    assert "prebuilt" in caught.value.remedy
