"""Running tools: compilers and their like, with a time limit and honest errors."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from op_builder.errors import ToolchainError


@dataclass(frozen=True)
class Finished:
    """A tool that ran to its end: exit code, and stdout and stderr as text."""

    command: tuple[str, ...]
    code: int
    output: str
    errors: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def run(
    command: Sequence[str],
    *,
    timeout_s: float = 60,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run ``command`` to its end.

    Raises:
        ToolchainError: it cannot be started, or runs longer than ``timeout_s`` seconds.
    """
    line = shlex.join(command)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolchainError(
            f"{line} cannot be started: {error.strerror}.", f"Check that {command[0]} exists and may be executed."
        ) from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(
            f"{line} did not end within {timeout_s:g} s.", "Run it by hand to see where it waits."
        ) from error
    finally:
        _end(process)
    return Finished(tuple(command), process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> None:
    """End a tool that still runs, and what it started: a wrapper's compiler must not outlive it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
