"""Ninja: its program, the file it reads, and running it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from op_builder import env
from op_builder.engine.commands import DEVICE_OBJECT, BuildCommands
from op_builder.engine.session import watched
from op_builder.errors import BuildCancelled, ToolchainError
from op_builder.plan import BuildPlan

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what was just done)."""

_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


def find_ninja() -> str:
    """The ninja program: the one of the ``ninja`` package of this Python, else the one on PATH.

    Raises:
        ToolchainError: there is none.
    """
    beside = Path(sys.executable).parent / "ninja"
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    try:
        import ninja

        packaged = Path(ninja.BIN_DIR) / "ninja"
        if packaged.is_file():
            return str(packaged)
    except Exception as error:
        logger.debug("the ninja package is of no use: %s", error)
    on_path = shutil.which("ninja")
    if on_path is not None:
        return on_path
    raise ToolchainError(
        "No ninja: neither the Python package 'ninja' nor a program of that name on PATH.",
        "Install it: pip install ninja.",
    )


def write_file(plan: BuildPlan, commands: BuildCommands, directory: Path) -> None:
    """Write ``build.ninja`` for ``commands`` into the staging directory."""
    lines = [
        "ninja_required_version = 1.5",
        "rule compile",
        "  command = $command",
        "  depfile = $out.d",
        "  description = compile $label",
        "rule link",
        "  command = $command",
        "  description = link $out",
        "rule stand_in",
        "  command = $command",
        "  description = stand in for $out",
    ]
    for step in commands.compile_steps:
        lines.append(f"build {_path(step.object_name)}: compile {_path(str(step.source.path))}")
        lines.append(f"  command = {_value(shlex.join(step.command))}")
        lines.append(f"  label = {_value(step.source.label)}")
    for name, command in commands.stand_ins.items():
        lines.append(f"build {name}: stand_in")
        lines.append(f"  command = {_value(shlex.join(command))}")
    objects = [_path(step.object_name) for step in commands.compile_steps]
    if commands.device_link:
        lines.append(f"build {DEVICE_OBJECT}: link {' '.join(objects)}")
        lines.append(f"  command = {_value(shlex.join(commands.device_link))}")
        objects.append(DEVICE_OBJECT)
    needed = " ".join([*objects, "|", *commands.stand_ins] if commands.stand_ins else objects)
    lines.append(f"build {_path(plan.artifact_name)}: link {needed}")
    lines.append(f"  command = {_value(shlex.join(commands.link))}")
    (directory / "build.ninja").write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Limits:
    """What a run may take: jobs at a time, seconds in all, and until ``cancel`` is set."""

    jobs: int
    timeout_s: float
    cancel: threading.Event


def run_ninja(program: str, directory: Path, log_path: Path, limits: Limits, progress: Progress | None = None) -> bool:
    """Run the ninja file in ``directory``; all output goes to ``log_path``. True when all steps succeeded.

    The compilers are ended with it when this process ends in any way, is told to stop, or the time is up.

    Raises:
        ToolchainError: it did not end in time.
        BuildCancelled: it was told to stop.
    """
    # The locale decides the language of diagnostics, which are searched for 'error:'.
    environment = env.child_environment(NINJA_STATUS="[%f/%t] ", LC_ALL="C", TMPDIR=str(directory))
    deadline = time.monotonic() + limits.timeout_s
    command = [program, "-j", str(limits.jobs)]
    with (
        log_path.open("w") as log,
        watched(command, cwd=directory, environment=environment, output=log) as process,
    ):
        reader = _ProgressReader(log_path, progress)
        while process.poll() is None:
            if limits.cancel.is_set():
                raise BuildCancelled("The build was stopped before its end.")
            if time.monotonic() > deadline:
                raise ToolchainError(
                    f"The build did not end within {limits.timeout_s:g} s and was stopped.",
                    "Raise ACCEL_COMPILE_TIMEOUT_S, or lower ACCEL_MAX_JOBS if the machine swaps.",
                )
            reader.report()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
        reader.report()
    return process.returncode == 0


class _ProgressReader:
    """Follows the log and reports each ``[done/total]`` line once."""

    def __init__(self, log_path: Path, progress: Progress | None) -> None:
        self._path = log_path
        self._progress = progress
        self._position = 0

    def report(self) -> None:
        if self._progress is None:
            return
        with self._path.open(errors="replace") as log:
            log.seek(self._position)
            for line in log:
                match = _STATUS.match(line)
                if match:
                    self._progress(int(match[1]), int(match[2]), match[3])
            self._position = log.tell()


def _path(text: str) -> str:
    return re.sub(r"([$ :])", r"$\1", text)


def _value(text: str) -> str:
    return text.replace("$", "$$").replace("\n", " ")
