"""Probes that builders run: whether a function links, and which ROCm is installed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder.errors import ToolchainError
from op_builder.system.process import remedy_of_limit, run
from op_builder.system.records import Memo, is_flag
from op_builder.toolchains.diagnose import diagnose
from op_builder.toolchains.toolset import find_cxx

PROBE_TIMEOUT_S = 120
_ROCM_VERSION_FILE = Path("/opt/rocm/.info/version")


def failure_of(
    command: Sequence[str],
    sources: Mapping[str, str],
    timeout_s: float = PROBE_TIMEOUT_S,
    *,
    is_for_target: bool = False,
) -> str:
    """Run a command in a temporary directory; the cause of its failure, empty when it worked.

    Args:
        sources: the texts of the files there, by name.

    Raises:
        ToolchainError: the command cannot be started or does not end, or the temporary directory cannot be used.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="accel-probe-") as name:
            environment = env.compiler_environment(is_for_target=is_for_target, TMPDIR=name)
            for source, text in sources.items():
                Path(name, source).write_text(text)
            done = run(command, cwd=Path(name), timeout_s=timeout_s, environment=environment)
            wrote = "-o" not in command or (Path(name) / command[command.index("-o") + 1]).exists()
    except OSError as error:
        raise _unusable_temporary_directory(error.strerror or str(error)) from error
    if done.ok:
        return "" if wrote else f"{command[0]} ended without an error but wrote no file"
    output = done.errors + done.output
    diagnosis = diagnose(output)
    if diagnosis.disk_full:
        raise _unusable_temporary_directory(os.strerror(errno.ENOSPC))
    return diagnosis.diagnostic if output.strip() else f"exit {done.code}"


def _unusable_temporary_directory(reason: str) -> ToolchainError:
    place = tempfile.tempdir or "the temporary directory"  # None where no directory can be written
    return ToolchainError(
        f"The check cannot write its files to {place}: {reason}.",
        remedy_of_limit(reason) or "Free some space there, or set TMPDIR to another directory.",
    )


def remembered_failure_of(
    command: Sequence[str],
    sources: Mapping[str, str],
    subject: str,
    files: list[str],
    memo: Memo,
    timeout_s: float = PROBE_TIMEOUT_S,
    *,
    is_for_target: bool = False,
) -> str:
    """:func:`failure_of`, with a success remembered while ``files`` are unchanged.

    A failure is never remembered: what is missing may be installed the next moment.

    Args:
        subject: everything the outcome depends on in addition to ``sources`` and ``files``.
    """

    def compute() -> tuple[dict[str, Any], list[str]]:
        failure = failure_of(command, sources, timeout_s, is_for_target=is_for_target)
        if failure:
            raise _ProbeFailed(failure)
        return {"worked": True}, files

    try:
        memo.get(f"probe {subject} {sources}", {"worked": is_flag}, compute)
    except _ProbeFailed as failed:
        return str(failed)
    return ""


class _ProbeFailed(Exception):
    pass


def link_failure(function: str, libraries: tuple[str, ...], library_dirs: tuple[str, ...], memo: Memo) -> str:
    """Why a program calling ``function`` does not link with ``libraries``; empty when it does."""
    # Only the name counts for the linker, so the declaration need not match the real one.
    text = f'extern "C" char {function}();\nint main() {{ return {function}(); }}\n'
    flags = [*(f"-L{name}" for name in library_dirs), *(f"-l{name}" for name in libraries)]
    try:
        return failure_of([*find_cxx(memo).command, "probe.cpp", "-o", "probe", *flags], {"probe.cpp": text})
    except ToolchainError as error:
        return error.message


def rocm_version() -> tuple[int, int]:
    """(major, minor) of the ROCm installation, (0, 0) without one."""
    try:
        found = re.match(r"(\d+)\.(\d+)", _ROCM_VERSION_FILE.read_text())
    except OSError:
        found = None
    return (int(found[1]), int(found[2])) if found else (0, 0)


def rocm_agent(label: str, pattern: str) -> str:
    """The first value that ``rocminfo`` prints after ``label`` and that matches ``pattern``, or empty."""
    program = shutil.which("rocminfo")
    if program is None:
        return ""
    for line in run([program]).output.splitlines():
        name, _, value = line.strip().partition(label)
        found = re.search(pattern, value)
        if not name and found:
            return found[0]
    return ""
