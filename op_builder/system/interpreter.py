"""The Python interpreter that child processes run, and the command that starts one like this process.

``sys.executable`` may be an application that has Python inside (PyInstaller and the like, or a program that embeds
Python). Starting it would start the application again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from op_builder.errors import ToolchainError

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
        f"Install Python {_version()} below {sys.base_prefix}, or ship the op prebuilt (python -m op_builder.build).",
    )


def isolated_command(code: str, *arguments: str) -> list[str]:
    """The command that runs ``code`` in a child that imports what this process would.

    The current directory and the environment cannot add modules to the child. It gets this process's ``sys.path``,
    with the standard library first, before it imports anything.

    Raises:
        ToolchainError: no interpreter was found.
    """
    path = sorted((entry for entry in sys.path if isinstance(entry, str)), key=lambda entry: not _is_standard(entry))
    start = "import sys\n"
    site = sys.modules.get("site")
    if site is not None and site.ENABLE_USER_SITE:  # -I leaves it out, and its .pth files may install import hooks
        start += f"import site\nsite.addsitedir({site.getusersitepackages()!a})\n"
    return [python(), "-I", "-c", f"{start}sys.path[:] = {path!a}\n{code}", *arguments]


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
