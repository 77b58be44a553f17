"""The Python interpreter that child processes run, and the only two commands that start one.

The current directory and the environment cannot add modules to these children.

``sys.executable`` may be an application that has Python inside (PyInstaller and the like, or a program that embeds
Python). Starting it would start the application again. If there is no other, each of these functions raises the
ToolchainError of :func:`python`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from op_builder import env
from op_builder.errors import ToolchainError

# ``-c`` without ``-I`` puts the current directory, as '', on the path.
_START = "import sys\nsys.path[:] = filter(None, sys.path)\n"
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*[a-z]?(?:[-_].*)?(?:\.exe)?", re.IGNORECASE)


def python() -> str:
    """A Python interpreter of this process's version: ``sys.executable`` unless that is an application.

    Raises:
        ToolchainError: no interpreter was found.
    """
    is_application = bool(getattr(sys, "frozen", False)) or "__compiled__" in vars(sys.modules["__main__"])
    if not is_application and _INTERPRETER.fullmatch(os.path.basename(sys.executable or "")):
        return sys.executable
    for path in _candidates():
        if os.access(path, os.X_OK) and not os.path.isdir(path) and path != sys.executable:
            return path
    name = sys.executable or "unknown"
    raise ToolchainError(
        f"Building an op needs a Python interpreter, and this process runs inside an application ({name}).",
        f"Install Python {_version()} below {sys.base_prefix}, or ship the op prebuilt (`accel-ops build OP`).",
    )


def isolated_command(code: str, *arguments: str) -> list[str]:
    """The command that runs ``code`` in a child that imports what this process would.

    The child gets this process's ``sys.path``, with the standard library first, before it imports anything.
    """
    path = sorted((entry for entry in sys.path if isinstance(entry, str)), key=lambda entry: not _is_standard(entry))
    start = _START
    site = sys.modules.get("site")
    if site is not None and site.ENABLE_USER_SITE:  # -I leaves it out, and its .pth files may install import hooks
        start += f"import site\nsite.addsitedir({site.getusersitepackages()!a})\n"
    return [*_isolated(python()), "-c", f"{start}sys.path[:] = {path!a}\n{code}", *arguments]


def bare_command(code: str, *arguments: str) -> list[str]:
    """The command that runs ``code`` in a child that imports the standard library alone, and starts fast."""
    return [*_isolated(python()), "-S", "-c", _START + code, *arguments]


def bare_file_command(file: str, *arguments: str) -> list[str]:
    """As :func:`bare_command`, for a Python file."""
    return [*_isolated(python()), "-S", file, *arguments]


def _isolated(interpreter: str) -> list[str]:
    """The words that start ``interpreter`` without modules that the environment adds.

    Code for ``-c`` must begin with ``_START``.
    """
    variables = env.child_environment()
    if not variables.get("PYTHONHOME") or sys.flags.ignore_environment:
        return [interpreter, "-I"]
    # -I would ignore PYTHONHOME, too. Without it, an interpreter that was moved away from its library does not start.
    others = [name for name in variables if name.startswith("PYTHON") and name != "PYTHONHOME"]
    return ["env", *(word for name in others for word in ("-u", name)), interpreter, "-s"]


def _candidates() -> Iterator[str]:
    """Paths of interpreters of this version, the most likely first."""
    base = getattr(sys, "_base_executable", None)
    if base and _INTERPRETER.fullmatch(os.path.basename(base)):
        yield base
    for prefix in dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]):
        yield os.path.join(prefix, "bin", f"python{_version()}{getattr(sys, 'abiflags', '')}")


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _is_standard(entry: str) -> bool:
    library = os.path.dirname(os.__file__)
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return entry in (library, os.path.join(library, "lib-dynload")) or os.path.basename(entry) == archive
