"""The file that ninja reads, and running it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from op_builder import env
from op_builder.engine.commands import DEVICE_OBJECT, BuildCommands
from op_builder.engine.session import watched
from op_builder.errors import BuildCancelled, ToolchainError
from op_builder.plan import BuildPlan
from op_builder.system.process import require_exit_codes
from op_builder.toolchains.flags import check_words

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what was just done)."""

_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


def write_file(plan: BuildPlan, commands: BuildCommands, directory: Path) -> None:
    """Write ``build.ninja`` for ``commands`` into the staging directory."""
    lines = [
        "ninja_required_version = 1.5",
        "rule run",
        "  command = $command",
        "  description = $label",
    ]

    def add(output: str, inputs: Iterable[str], command: Sequence[str], label: str) -> None:
        check_words(command)
        lines.append(f"build {_path(output)}: run {' '.join(inputs)}")
        # ninja cannot read a carriage return; the quotes around it are those of shlex.
        line = shlex.join(command).replace("\r", "'\"$(printf '\\r')\"'")
        lines.append(f"  command = {_value(line)}")
        lines.append(f"  label = {_value(label.replace(chr(13), ' '))}")

    # The directory is new, so that every step runs once: ninja needs neither the sources nor the headers.
    for step in commands.compile_steps:
        add(step.object_name, (), step.command, f"compile {step.source.label}")
    for name, command in commands.stand_ins.items():
        add(name, (), command, f"stand in for {name}")
    objects = [step.object_name for step in commands.compile_steps]
    if commands.device_link:
        add(DEVICE_OBJECT, objects, commands.device_link, f"link {DEVICE_OBJECT}")
        objects.append(DEVICE_OBJECT)
    add(plan.artifact_name, [*objects, *commands.stand_ins], commands.link, f"link {plan.artifact_name}")
    (directory / "build.ninja").write_bytes(os.fsencode("\n".join(lines) + "\n"))


def run_ninja(
    command: Sequence[str],
    directory: Path,
    log_path: Path,
    cancel: threading.Event,
    progress: Progress | None = None,
) -> bool:
    """Run the ninja file in ``directory``; all output goes to ``log_path``. True when all steps succeeded.

    The compilers are ended with it when this process ends in any way, when ``cancel`` is set, or when the time is up.

    Raises:
        ToolchainError: it did not end in time.
        BuildCancelled: ``cancel`` was set.
    """
    require_exit_codes()
    # The locale decides the language of diagnostics, which are searched for 'error:'.
    environment = env.child_environment(NINJA_STATUS="[%f/%t] ", LC_ALL="C", TMPDIR=str(directory))
    timeout_s = env.ACCEL_COMPILE_TIMEOUT_S.get()
    deadline = time.monotonic() + timeout_s
    with (
        log_path.open("w") as log,
        log_path.open(errors="replace") as written,
        watched(command, cwd=directory, environment=environment, output=log) as process,
    ):
        is_running = True
        while is_running:
            is_running = process.poll() is None
            for status in filter(None, map(_STATUS.match, written)):
                if progress is not None:
                    progress(int(status[1]), int(status[2]), status[3])
            if not is_running:
                break
            if cancel.is_set():
                raise BuildCancelled("The build was cancelled.")
            if time.monotonic() > deadline:
                raise ToolchainError(
                    f"The build did not end within {timeout_s:g} s and was stopped.",
                    "Raise ACCEL_COMPILE_TIMEOUT_S, or lower ACCEL_MAX_JOBS if the machine swaps.",
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
    return process.returncode == 0


def _path(text: str) -> str:
    return re.sub(r"([$ :])", r"$\1", text)


def _value(text: str) -> str:
    return text.replace("$", "$$")
