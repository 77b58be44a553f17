"""Virtual environments with the torch of this one, and what is really installed into them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

from op_builder import env
from op_builder.engine.ninja import find_ninja

ROOT = Path(__file__).resolve().parents[2]
OPS = "op_builder/_prebuilt/"

# accel-ops itself, a compiler that would serve every test, and numpy, which needs newer CPUs than torch.
_LEFT_OUT = ("accel", "__editable__", "__pycache__", "ziglang", "numpy")
_TIMEOUT_S = 1400.0  # less than pytest's faulthandler_timeout

# Package indexes may be slow, or fail once.
_OF_INSTALLERS = {"PIP_RETRIES": "10", "PIP_DEFAULT_TIMEOUT": "60", "UV_HTTP_TIMEOUT": "120"}


def environment_of(**variables: str | None) -> dict[str, str]:
    """The variables of a command that sees nothing of this checkout but what is installed where it runs.

    Ops are compiled into the cache of this run of the suite, unless ``variables`` name another.
    """
    ours = [name for name in os.environ if name.startswith(("ACCEL_", "DS_", "PYTHON", "VIRTUAL_ENV", "PYTEST"))]
    foreign = ("TORCH_CUDA_ARCH_LIST", "CUDA_VISIBLE_DEVICES", "MAX_JOBS")
    return env.child_environment(
        **{
            **dict.fromkeys((*ours, *foreign)),
            "ACCEL_CACHE_DIR": os.environ["ACCEL_CACHE_DIR"],
            "ACCEL_ACCELERATOR": "cpu",
            # Threads that spin while they wait take the cores from other tests.
            "OMP_WAIT_POLICY": "passive",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **{name: os.environ.get(name, patience) for name, patience in _OF_INSTALLERS.items()},
            **variables,
        }
    )


def run(*command: str | Path, cwd: Path, fails: bool = False, **variables: str | None) -> str:
    """A command's output, then its error output; it must succeed, or fail if ``fails``."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment_of(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    output = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, f"{command} ended with {done.returncode}\n{output[-8000:]}"
    return output


@dataclass(frozen=True)
class Environment:
    """A virtual environment in ``directory``."""

    directory: Path

    def copy(self, directory: Path) -> Environment:
        """A copy, whose programs in Python still run in this one."""
        return Environment(Path(shutil.copytree(self.directory, directory, symlinks=True)))

    @property
    def programs(self) -> Path:
        return self.directory / "bin"

    @property
    def python(self) -> Path:
        return self.programs / "python"

    def add_pip(self) -> None:
        """The program ``pip``, which an environment made with ``--without-pip`` lacks."""
        program = self.programs / "pip"
        program.write_text(f"#!{self.python}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n")
        program.chmod(0o755)

    @property
    def site(self) -> Path:
        """Its directory of installed packages."""
        (site,) = self.directory.glob("lib/python*/site-packages")
        return site

    @property
    def ops(self) -> Path:
        """Where accel-ops keeps prebuilt ops in it."""
        return self.site / OPS

    def run(self, *arguments: str | Path, fails: bool = False, **variables: str | None) -> str:
        """Run its Python, in its own directory, where nothing can be imported from."""
        return run(self.python, *arguments, cwd=self.directory, fails=fails, **variables)

    def pip(self, *arguments: str | Path, fails: bool = False, **variables: str | None) -> str:
        return self.run("-m", "pip", *arguments, fails=fails, **variables)

    def without_compilers(self, cache: Path) -> dict[str, str | None]:
        """Variables of a machine that has no compiler and has compiled nothing into ``cache``."""
        return {"PATH": str(self.programs), "CXX": None, "CUDA_HOME": None, "ACCEL_CACHE_DIR": str(cache)}

    def report(self, **variables: str | None) -> dict[str, dict[str, Any]]:
        """The report's rows on ops, by their names."""
        output = self.run("-m", "op_builder.report", "--json", **variables)
        return {row["name"]: row for row in json.JSONDecoder().raw_decode(output)[0]["ops"]}


def make_environment(directory: Path) -> Environment:
    """A virtual environment with the packages of the running one, but not accel-ops.

    Installing a torch takes minutes, so the packages are links.
    """
    made = bare_environment(directory)
    link("", made)
    (made.programs / "ninja").symlink_to(find_ninja())
    return made


def torch_environment(directory: Path) -> Environment:
    """A virtual environment that has only pip, torch and what torch requires, as links."""
    made = bare_environment(directory)
    for name in _required_by("torch"):
        for top in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            _put(Path(sysconfig.get_path("purelib"), top), made)
    return made


def _required_by(name: str) -> list[str]:
    """A distribution and what it needs, directly or not, without extras."""
    found = [name]
    for each in found:  # which grows meanwhile
        needed = map(Requirement, distribution(each).requires or ())
        named = [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
        found += [one for one in dict.fromkeys(named) if one not in found]
    return found


def bare_environment(directory: Path) -> Environment:
    """A virtual environment that has only pip."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
    made = Environment(directory)
    link("pip", made)
    return made


def link(prefix: str, environment: Environment) -> None:
    """Put the running environment's packages whose names begin with ``prefix`` into ``environment``."""
    for source in Path(sysconfig.get_path("purelib")).glob(f"{prefix}*"):
        if not source.name.startswith(_LEFT_OUT):
            _put(source, environment)


def _put(source: Path, environment: Environment) -> None:
    place = environment.site / source.name
    if not place.exists():
        if source.suffix == ".dist-info":
            shutil.copytree(source, place)  # uv rejects a record that is a link
        else:
            place.symlink_to(source)


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A directory of this run of the suite, filled by ``make`` in the first process that needs it.

    Tests must not change it.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    directory, done = base / name, base / f"{name}.done"
    with FileLock(base / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            make(directory)
            done.touch()
    return directory


def copy_sources(factory: pytest.TempPathFactory, directory: Path) -> Path:
    """Copy the files that a clone of this checkout would have to ``directory``: a test may change them."""

    def copy(place: Path) -> None:  # once, so that all tests see the same even if the checkout is edited meanwhile
        for name in _names_of_sources():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)

    return Path(shutil.copytree(shared(factory, "accel-ops-tree", copy), directory))


def _names_of_sources() -> list[str]:
    if (ROOT / ".git").exists():
        listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
        return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]  # an unpacked sdist


def files_in(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel and their contents."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def binaries_in(wheel: Path) -> list[str]:
    """The names of the ops in a wheel, one for each binary, sorted."""
    return sorted(Path(name).stem for name in files_in(wheel) if name.endswith(".so"))


def index_of(wheel: Path) -> dict[str, Any]:
    """The index of prebuilt ops in accel-ops' wheel."""
    return dict(json.loads(files_in(wheel)[f"{OPS}wheel.json"]))


def the_wheel(directory: Path) -> Path:
    """The one wheel in a directory."""
    (wheel,) = directory.glob("*.whl")
    return wheel
