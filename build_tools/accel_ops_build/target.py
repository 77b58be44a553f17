"""The torch that ops are built against, and the Python that has it.

Frontends build in an environment of their own. pip's uses the interpreter of the target environment, whose torch is
found by starting that interpreter without pip's variables. ``python -m build`` and uv hide the target environment, so
``ACCEL_BUILD_TORCH`` must name it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

TORCH = "torch>=2.10"

# The first lines of every program for a target: directories to search before and after its own. Nothing is imported
# before the current directory, the first that ``python -c`` searches, is removed.
PATH_PROGRAM = """
import sys
del sys.path[0]
import json
first, last = json.loads(sys.argv.pop(1))
sys.path[:] = dict.fromkeys([*first, *sys.path, *last])
"""
_FIND_TORCH = f"""{PATH_PROGRAM}
import importlib.metadata, importlib.util
torch = importlib.util.find_spec("torch")
try:
    version = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    version = ""
print(json.dumps([torch.origin if torch else "", version, importlib.util.find_spec("op_builder") is not None]))
"""
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class TargetPython:
    """A Python that has torch.

    Attributes:
        python: the interpreter.
        first: directories to search before its own.
        torch_version: the version of its torch; empty if unknown.
        torch_dir: the directory of that torch.
        has_accel_ops: whether it can import accel-ops.
        reason: where the torch comes from, for the log.
    """

    python: str
    first: tuple[str, ...]
    torch_version: str
    torch_dir: str
    has_accel_ops: bool
    reason: str

    def command(self, program: str, first: Sequence[str] = (), *arguments: str) -> list[str]:
        """The command that runs ``program``, which begins with PATH_PROGRAM.

        ``first`` is searched first; the build environment, which contains ninja and other tools, is searched last.
        """
        return _command(self.python, program, (*first, *self.first), _build_path(), arguments)


def log(text: str) -> None:
    """Print a line for the user; frontends such as ``pip -v`` show it at once."""
    print(f"op_builder: {text}", file=sys.stderr, flush=True)


def fail(message: str, remedy: str) -> NoReturn:
    """End the build with an error message, without a traceback."""
    sys.exit(f"op_builder: error: {message}\n  Remedy: {remedy}")


def environment() -> dict[str, str]:
    """The environment of a program for a target."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def find_target() -> TargetPython | None:
    """The Python and the torch to build against; None if no torch is found and ACCEL_BUILD_TORCH is unset.

    Exits with an error if ACCEL_BUILD_TORCH is neither a Python nor a directory with torch.
    """
    name = os.environ.get("ACCEL_BUILD_TORCH")
    if not name:
        # pip hides the target environment from this process, but not from a new one.
        hidden = importlib.util.find_spec("torch") is None
        kind = "the target environment" if hidden else "the build environment"
        return _ask(sys.executable, (), _build_path(), f"{kind}, {sys.prefix}")
    place, reason = Path(name).expanduser(), f"ACCEL_BUILD_TORCH={name}"
    if not place.is_absolute():
        reason += f", from {Path.cwd()},"  # python -m build makes a wheel in the unpacked sdist
    found = _named(place.absolute(), reason)
    if found is None:
        fail(f"{reason} has no torch.", "Set it to a Python, or a site-packages directory, that has torch.")
    return found


def _named(place: Path, reason: str) -> TargetPython | None:
    for python in (place, place / "bin" / "python"):  # a virtual environment may be named by its directory
        if python.is_file() and os.access(python, os.X_OK):
            return _ask(str(python), (), (), reason)  # without the build environment, which may have another torch
    if not place.is_dir():
        fail(
            f"{reason} is neither an executable Python nor a directory.",
            f"Set it to an absolute path, or unset it to use the torch of this environment ({sys.prefix}).",
        )
    if not (place / "torch").is_dir():
        return None
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    modules = sorted(path.name for path in (place / "torch").glob("_C.*"))
    if modules and f"_C{suffix}" not in modules:
        fail(
            f"{reason} has a torch for another Python: {modules[0]}, and {sys.executable} needs _C{suffix}.",
            "Set it to the Python of that torch.",
        )
    return _ask(sys.executable, (str(place),), (), reason)


def _build_path() -> tuple[str, ...]:
    return tuple(os.path.abspath(path) for path in sys.path if os.path.isdir(path))


def _ask(python: str, first: tuple[str, ...], last: tuple[str, ...], reason: str) -> TargetPython | None:
    command = _command(python, _FIND_TORCH, first, last, ())
    try:
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(f"{python} cannot be run: {error}.", "Correct ACCEL_BUILD_TORCH.")
    except ValueError:
        output = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        fail(f"{python} is not a Python interpreter; it printed {output!r}.", "Correct ACCEL_BUILD_TORCH.")
    origin, version, has_accel_ops = answer
    has_accel_ops = has_accel_ops or importlib.util.find_spec("op_builder") is not None
    return TargetPython(python, first, version, os.path.dirname(origin), has_accel_ops, reason) if origin else None


def _command(
    python: str, program: str, first: Sequence[str], last: Sequence[str], arguments: Sequence[str]
) -> list[str]:
    # -E: pip's variables hide the target environment. -B: the modules may be in the unpacked wheel.
    return [python, "-E", "-B", "-c", program, json.dumps([list(first), list(last)]), *arguments]
