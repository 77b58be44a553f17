"""Running tools: compilers and their like, with a time limit and honest errors."""

from __future__ import annotations

import shlex
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
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(
            f"{line} did not end within {timeout_s:g} s.", "Run it by hand to see where it waits."
        ) from error
    except OSError as error:
        raise ToolchainError(
            f"{line} cannot be started: {error.strerror}.", f"Check that {command[0]} exists and may be executed."
        ) from error
    return Finished(tuple(command), done.returncode, done.stdout, done.stderr)
