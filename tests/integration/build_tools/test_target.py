from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from accel_ops_build.target import PATH_PROGRAM, TargetPython, find_target

from tests.support.compilers import program


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_BUILD_TORCH", raising=False)


def made_up_torch(site: Path, extension: str = str(sysconfig.get_config_var("EXT_SUFFIX"))) -> Path:
    """A directory with what looks like an installed torch 2.99; nothing here imports it."""
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / f"_C{extension}").touch()
    (site / "torch-2.99.0.dist-info").mkdir()
    (site / "torch-2.99.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.4\nName: torch\nVersion: 2.99.0\n")
    return site


@pytest.fixture
def bare_venv(tmp_path: Path) -> Path:
    """A virtual environment with no package at all."""
    venv.create(tmp_path / "venv", with_pip=False)
    return tmp_path / "venv"


def require_target() -> TargetPython:
    found = find_target()
    assert found is not None
    return found


def purelib(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))


@pytest.mark.parametrize("place", ["bin/python", "."])
def test_a_virtual_environment_is_named_by_its_python_or_its_directory(
    bare_venv: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_torch(purelib(bare_venv))
    monkeypatch.setenv("ACCEL_BUILD_TORCH", str(bare_venv / place))
    found = require_target()
    assert Path(found.python) == bare_venv / "bin" / "python"
    assert Path(found.torch_dir) == purelib(bare_venv) / "torch"
    assert found.torch_version == "2.99.0"
    assert found.reason == f"ACCEL_BUILD_TORCH={bare_venv / place}"


def test_installed_packages_are_named_by_their_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_torch(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCEL_BUILD_TORCH", "site")
    found = require_target()
    assert found.python == sys.executable
    assert Path(found.torch_dir) == tmp_path / "site" / "torch"
    program = f"{PATH_PROGRAM}\nimport importlib.util as u; print(u.find_spec('torch').origin)"
    seen = subprocess.check_output(found.command(program), text=True).strip()
    assert Path(seen) == tmp_path / "site" / "torch" / "__init__.py", "before the torch of this environment"


def test_the_torch_of_this_environment_is_taken_where_none_is_named() -> None:
    found = require_target()
    assert found.python == sys.executable
    assert Path(found.torch_dir) == Path(str(importlib.util.find_spec("torch").origin)).parent  # type: ignore[union-attr]
    assert found.reason == f"the build environment, {sys.prefix}"


def test_no_torch_anywhere_is_no_error_unless_one_was_named(bare_venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "executable", str(bare_venv / "bin" / "python"))
    assert find_target() is None


def test_a_target_searches_its_own_packages_before_the_build_environments(
    bare_venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("first", "last"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "both.py").write_text(f"where = {place!r}\n")
        (tmp_path / place / f"only_{place}.py").touch()
    (purelib(bare_venv) / "json.py").write_text("raise SystemExit('shadows the standard library')\n")
    (tmp_path / "first" / "json.py").write_text("raise SystemExit('is in the current directory')\n")
    (purelib(bare_venv) / "both.py").write_text("where = 'own'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "last")])
    target = TargetPython(str(bare_venv / "bin" / "python"), (), "", "", False, "")
    program = f"{PATH_PROGRAM}\nimport both, only_last; print(both.where, *sys.argv[1:])"

    def printed(first: list[str]) -> str:
        return subprocess.check_output(target.command(program, first, "a", "b"), text=True, cwd=tmp_path / "first")

    assert printed([]).split() == ["own", "a", "b"]
    assert printed([str(tmp_path / "first")]).split() == ["first", "a", "b"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nowhere", "is neither an executable Python nor a directory"),
        ("not-executable", "is neither an executable Python nor a directory"),
        ("no-python", "is not a Python interpreter; it printed 'I am no snake'"),
        ("no-interpreter", "cannot be run"),
        ("empty", "has no torch."),
        ("venv/bin/python", "has no torch."),  # even if the build environment has one
        ("foreign", "torch for another Python: _C.cpython-307-somewhere.so"),
    ],
)
@pytest.mark.usefixtures("bare_venv")
def test_what_has_no_usable_torch_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "not-executable").touch()
    program(tmp_path / "no-python", "echo I am no snake >&2; exit 1")
    program(tmp_path / "no-interpreter", "").write_text("#!/nowhere/at/all\n")
    made_up_torch(tmp_path / "foreign", ".cpython-307-somewhere.so")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCEL_BUILD_TORCH", name)
    with pytest.raises(SystemExit) as ended:
        find_target()
    message = str(ended.value)
    assert error in message
    assert "\n  Remedy: " in message
    assert "ACCEL_BUILD_TORCH" in message
    # A relative name, with the directory that it is relative to.
    assert f"ACCEL_BUILD_TORCH={name}, from {tmp_path}," in message or str(tmp_path / name) in message
