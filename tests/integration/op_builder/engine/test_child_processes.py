"""The Python processes that the engine starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.errors import IncompatibleOpError
from tests.support.compilers import program
from tests.support.foreign_package import python
from tests.support.small_ops import ENTRY, OWN_BUILDER, SmallBuilder, added

# Its init function needs torch, so it is tried in a child that imports torch.
LOAD = """
import sys
from op_builder import load_inline
text = '''
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "m", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_m() {
  return PyImport_ImportModule("torch") == nullptr ? nullptr : PyModule_Create(&definition);
}
'''
print(load_inline("m", text).__name__)
"""


# The console script.
RUN = "import sys\nfrom op_builder.__main__ import run\nsys.exit(run())\n"
STANDARD = ("types", "struct", "json", "ctypes", "logging", "importlib", "warnings", "sitecustomize", "usercustomize")
INSTALLED = ("torch", "op_builder", "numpy", "sympy", "typing_extensions", "psutil", "ninja", "packaging", "setuptools")


def run_among_planted_files(tmp_path: Path, text: str, *arguments: str) -> None:
    """Run a script in a directory with modules that none of its processes may execute."""
    for name in (*STANDARD, *INSTALLED):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    script = tmp_path / "scripts" / "load.py"
    script.parent.mkdir()
    script.write_text(text)
    (script.parent / "own.py").write_text(OWN_BUILDER)
    (script.parent / "own.cpp").write_text(ENTRY)
    variables = {"ACCEL_CACHE_DIR": str(tmp_path / "cache"), "ACCEL_ACCELERATOR": "cpu"}
    done = python(script, *arguments, cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()


def test_the_child_of_a_load_imports_nothing_from_the_current_directory(tmp_path: Path) -> None:
    run_among_planted_files(tmp_path, LOAD)


@pytest.mark.parametrize(
    "command",
    [
        "report",
        "build own:OwnBuilder",
        "cache verify",
        "launch --num_accelerators 1 --no_python true",
    ],
)
def test_no_command_imports_from_the_current_directory(command: str, tmp_path: Path) -> None:
    run_among_planted_files(tmp_path, RUN, *command.split())


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The application that this process is said to be; it leaves ``started`` behind."""
    path = program(tmp_path / "application" / "app", f"touch {tmp_path / 'started'}")
    monkeypatch.setattr("sys.executable", str(path))
    return path


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.usefixtures("application")
def test_an_application_is_not_started_where_an_interpreter_is_installed(
    small: SmallBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    monkeypatch.setattr("sys.frozen", frozen, raising=False)
    assert added(small.load()) == 1.0
    assert not (tmp_path / "started").exists()


def test_an_application_without_an_interpreter_is_refused_with_the_reason(
    small: SmallBuilder, application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys._base_executable", str(application))
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(f"sys.{name}", str(tmp_path))
    assert not small.is_compatible()
    with pytest.raises(IncompatibleOpError, match=r"inside an application .*/app") as caught:
        small.load()
    assert "prebuilt" in caught.value.remedy
    assert not (tmp_path / "started").exists()
