"""Which torch a prebuild is made against.

Frontends build in an environment of their own. pip's is laid over the interpreter of the environment
that is installed into, so that one's torch is found by starting the interpreter anew without pip's
variables. ``python -m build`` and uv hide it: there ``ACCEL_BUILD_TORCH`` names it, or torch is
requested as a build requirement.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from op_builder import env
from op_builder.errors import AccelError

# What every program that is run in a target begins with: its own places first, then the build
# environment's, which has ninja and the like.
PATH_PROGRAM = """
import json, sys
first, last = json.loads(sys.argv.pop(1))
sys.path[:] = dict.fromkeys([*first, *sys.path[1:], *last])
"""

_FIND_TORCH = f"""{PATH_PROGRAM}
import importlib.metadata, importlib.util
spec = importlib.util.find_spec("torch")
try:
    version = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    version = ""
print(json.dumps([spec.origin if spec is not None else "", version]))
"""
_TIMEOUT_S = 120.0

REFUSED = 3
"""The status with which a program in a target ends when it has told why it did not do its work."""


@dataclass(frozen=True)
class Target:
    """A Python, and what of the build environment it may use besides its own.

    Attributes:
        python: the program.
        first: directories that are searched before its own.
        path: directories that are searched after its own.
        torch_version: of the torch that it finds, empty where the installation does not say.
        torch_dir: where that lies.
        reason: whose torch it is, for the log.
    """

    python: str
    first: tuple[str, ...]
    path: tuple[str, ...]
    torch_version: str
    torch_dir: str
    reason: str

    def command(self, program: str, first: Sequence[str] = (), *arguments: str) -> list[str]:
        """The command that runs ``program``, which begins with PATH_PROGRAM; ``first`` is searched before all else."""
        return _command(self.python, program, (*first, *self.first), self.path, arguments)


def say(text: str) -> None:
    """Tell the person who waits: ``pip -v`` and the other frontends show it as it comes."""
    print(f"op_builder: {text}", file=sys.stderr, flush=True)


def find_target() -> Target | None:
    """The Python and the torch to build against; None where no torch is found and none was named.

    Raises:
        AccelError: ACCEL_BUILD_TORCH names no Python and no directory with a torch in it.
    """
    asked = env.ACCEL_BUILD_TORCH.get()
    if asked is None:
        # pip hides the environment that is installed into from this process, and not from a new one.
        hidden = importlib.util.find_spec("torch") is None
        kind = "the environment that is installed into" if hidden else "the environment of this build"
        return _ask(sys.executable, (), _searched_here(), f"{kind}, {sys.prefix}")
    reason = f"{env.ACCEL_BUILD_TORCH.name}={asked}"
    if not asked.is_absolute():
        reason += f", from {Path.cwd()},"  # python -m build makes a wheel in the unpacked sdist
    found = _named(asked.absolute(), reason)
    if found is None:
        raise AccelError(f"{reason} has no torch.", "Name the Python, or the site-packages, of one that has.")
    return found


def _named(place: Path, reason: str) -> Target | None:
    # A torch that this environment has besides is not the one that was named.
    tools = _searched_here()
    for python in (place, place / "bin" / "python"):  # a virtual environment may be named by its directory
        if python.is_file() and os.access(python, os.X_OK):
            found = _ask(str(python), (), (), reason)
            return found and replace(found, path=tools)
    if not place.is_dir():
        raise AccelError(
            f"{reason} is neither a Python that can be run nor a directory.",
            f"Correct it, best as an absolute path, or unset it to use the torch of this environment ({sys.prefix}).",
        )
    if not (place / "torch").is_dir():
        return None
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    modules = sorted(path.name for path in (place / "torch").glob("_C.*"))
    if modules and f"_C{suffix}" not in modules:
        raise AccelError(
            f"{reason} holds a torch for another Python: it has {modules[0]}, {sys.executable} needs _C{suffix}.",
            "Name the Python that this torch belongs to instead.",
        )
    return _ask(sys.executable, (str(place),), tools, reason)


def _searched_here() -> tuple[str, ...]:
    return tuple(os.path.abspath(path) for path in sys.path if os.path.isdir(path))


def _ask(python: str, first: tuple[str, ...], path: tuple[str, ...], reason: str) -> Target | None:
    try:
        done = subprocess.run(
            _command(python, _FIND_TORCH, first, path, ()),
            env=env.child_environment(PYTHONPATH=None),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AccelError(f"{python} does not run: {error}.", f"Correct {env.ACCEL_BUILD_TORCH.name}.") from error
    try:
        origin, version = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError as error:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise AccelError(
            f"{python} does not answer as a Python does: {said!r}.", f"Correct {env.ACCEL_BUILD_TORCH.name}."
        ) from error
    return Target(python, first, path, version, os.path.dirname(origin), reason) if origin else None


def _command(
    python: str, program: str, first: Sequence[str], last: Sequence[str], arguments: Sequence[str]
) -> list[str]:
    # -E: pip's variables hide the environment that is installed into. -B: what is run may lie in the wheel.
    return [python, "-E", "-B", "-c", program, json.dumps([list(first), list(last)]), *arguments]
