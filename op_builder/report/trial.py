"""Loading an extension in throw-away environments, each with another torch."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

from op_builder import env
from op_builder.errors import AccelError, ToolchainError
from op_builder.report.extension_file import ExtensionFile, needed_first
from op_builder.report.requirements import Binary
from op_builder.system.interpreter import isolated_command, python
from op_builder.system.process import run

_INDEX = "https://download.pytorch.org/whl/cpu"
_TIMEOUT_S = 3600.0
# The variables that name other places of packages, and those that exclude the files that do.
_PLACES = re.compile(r"(?:PIP|UV)_(?:\w*INDEX|FIND_LINKS|TORCH_BACKEND|CONFIG_FILE)")
_NO_FILES = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}

# Argument: the module's name or nothing, the library, and those that it needs from the same wheel.
_CHILD = """
import ctypes, importlib.machinery as machinery, importlib.util, os, sys
import torch
module, path, *needed = sys.argv[1:]
for library in needed:
    ctypes.CDLL(library)
if module and os.path.basename(path).partition(".")[0] == module:
    finder = machinery.FileFinder(os.path.dirname(path), (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES))
    spec = finder.find_spec(module)
    if spec is None or spec.origin != path:
        sys.exit(f"this Python does not import {os.path.basename(path)} by the name {module}")
elif module:  # its package opens it by path
    spec = importlib.util.spec_from_file_location(module, path)
if module:
    importlib.util.module_from_spec(spec)
else:
    ctypes.CDLL(path)
os._exit(0)
"""


def load_with(file: ExtensionFile, release: str, find_links: str | None) -> dict[str, str]:
    """Load each library of ``file`` in a process of its own with the CPU build of a torch; its error, or nothing.

    Raises:
        AccelError: the environment cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="accel-doctor-", ignore_cleanup_errors=True) as name:
        place = Path(name).resolve()
        interpreter = _environment(place / "environment", release, find_links)
        files = place / "files"
        if file.tags is None:
            files = file.path.parent.resolve()
        else:
            with zipfile.ZipFile(file.path) as archive:
                archive.extractall(files, [binary.name for binary in file.binaries])
        by_name = {binary.name.rpartition("/")[2]: binary for binary in file.binaries}
        return {binary.name: _load_library(binary, by_name, files, interpreter) for binary in file.binaries}


def _environment(directory: Path, release: str, find_links: str | None) -> str:
    interpreter = str(directory / "bin" / "python")
    source = ["--no-index", "--find-links", find_links] if find_links else ["--index-url", _INDEX]
    wanted = ["--quiet", *source, f"torch=={release}+cpu"]
    if uv := _uv():
        make = [uv, "venv", "--quiet", "--python", python(), str(directory)]
        install = [uv, "pip", "install", "--python", interpreter, *wanted]
    else:
        make = isolated_command("import sys, venv\nvenv.create(sys.argv[1], with_pip=True)", str(directory))
        install = [interpreter, "-I", "-m", "pip", "install", "--no-cache-dir", *wanted]
    kept = {name: value for name, value in env.child_environment().items() if not _PLACES.match(name)}
    environment = {**kept, **_NO_FILES}
    for command in (make, install):
        try:
            done = run(command, timeout_s=_TIMEOUT_S, environment=environment)
        except ToolchainError as error:
            raise AccelError(f"An environment with torch {release}+cpu cannot be made: {error.message}") from None
        if not done.ok:
            raise AccelError(
                f"An environment with torch {release}+cpu cannot be made: {done.errors.strip() or done.output.strip()}",
                "Pass --find-links with a directory or page that has this build and its requirements.",
            )
    return interpreter


def _uv() -> str | None:
    if program := shutil.which("uv"):
        return program
    try:
        from uv import find_uv_bin
    except ModuleNotFoundError:
        return None
    return find_uv_bin()


def _load_library(binary: Binary, by_name: dict[str, Binary], files: Path, interpreter: str) -> str:
    """Load one library below ``files`` in a process of an interpreter, after those of its wheel that it needs.

    Returns:
        The error's last line; empty if it loads.
    """
    names = needed_first(binary.elf.needed, {name: other.elf for name, other in by_name.items()})
    needed = [str(files / by_name[name].name) for name in names if by_name[name] is not binary]
    modules = sorted(name.removeprefix("PyInit_") for name in binary.elf.defined if name.startswith("PyInit_"))
    stem = binary.name.rpartition("/")[2].partition(".")[0]
    module = stem if stem in modules else (modules or [""])[0]
    done = run([interpreter, "-I", "-c", _CHILD, module, str(files / binary.name), *needed], timeout_s=_TIMEOUT_S)
    lines = done.errors.strip().splitlines()
    return "" if done.ok else lines[-1] if lines else f"the process ended with status {done.code}"
