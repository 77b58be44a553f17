"""The Python processes that the engine starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import env
from op_builder.errors import IncompatibleOpError
from op_builder.system.interpreter import isolated_command
from tests.support.compilers import program
from tests.support.foreign_package import ROOT
from tests.support.small_ops import SmallBuilder, added

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


def test_the_child_imports_nothing_from_the_current_directory(tmp_path: Path) -> None:
    for name in ("types", "struct", "json", "ctypes", "torch", "op_builder", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    script = tmp_path / "scripts" / "load.py"
    script.parent.mkdir()
    script.write_text(LOAD)
    variables = env.child_environment(PYTHONPATH=str(ROOT), ACCEL_CACHE_DIR=str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_the_child_takes_the_standard_library_first_and_then_the_path_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "struct.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "own_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    command = isolated_command("import struct, own_module, sys\nprint(sys.argv[1:], own_module.__file__)", "a b")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"['a b'] {tmp_path / 'own_module.py'}\n", done.stderr


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
