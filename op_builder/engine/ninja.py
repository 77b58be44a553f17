"""Finding ninja, the file that it reads, and running it."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from op_builder import env
from op_builder.engine.commands import DEVICE_OBJECT, BuildCommands, CompileStep
from op_builder.errors import BuildCancelled, ToolchainError
from op_builder.plan import BuildPlan
from op_builder.system.process import OUT_OF_RESOURCES, remedy_of_limit, require_exit_codes, run, start
from op_builder.toolchains.flags import check_words

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what was just done)."""

_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
_MOST_BYTES = (1 << 17) - 1  # Linux passes no longer word to a program, and the command is one of `sh -c`
_POLL_S = 0.01
_STOP_S = 10.0

# Reads the session's number, then waits for a word or the pipe's end: the kernel closes it with its last
# writer, even if SIGKILL ends that. Ninja gives each compiler its own process group, so the whole session is
# ended; daemons that a compiler launcher started have left the session and keep running. A process may start
# another just before it ends, so the search is repeated until none is left; not indefinitely, because a process
# that waits for a broken disk cannot be ended.
_WATCHER = """
session=
while read -r word; do
  case $word in
    ended) exit 0 ;;
    end) break ;;
    *) session=$word ;;
  esac
done
[ -n "$session" ] || exit 0
[ -r /proc/self/stat ] || kill -TERM "$session"
for turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
  left=
  for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$stat" || continue
    pid=${line%% *}
    set -- ${line##*) }
    if [ "$4" = "$session" ] && [ "$1" != Z ]; then
      kill -KILL "$pid" 2>/dev/null
      left=yes
    fi
  done
  [ -n "$left" ] || exit 0
  sleep 0.05
done
exit 1
"""

# Prints its process id before it becomes the program, which is thus watched from the start.
_STARTER = 'echo $$ >&0; exec "$@" </dev/null'


def write_file(plan: BuildPlan, commands: BuildCommands, steps: Iterable[CompileStep], directory: Path) -> None:
    """Write ``build.ninja`` for ``commands`` into the staging directory.

    Args:
        steps: those of the compile steps whose objects are not there yet.
    """
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
        if len(os.fsencode(shlex.join(command))) > _MOST_BYTES:
            raise ToolchainError(
                f"The command to {label} is longer than the {_MOST_BYTES:,} bytes that Linux allows.",
                "Define long macros in a header that -include names, and pass fewer flags and include directories.",
            )
        line = shlex.join(command).replace("\r", "'\"$(printf '\\r')\"'")
        lines.append(f"  command = {_value(line)}")
        lines.append(f"  label = {_value(label.replace(chr(13), ' '))}")

    # The directory is new, so that every step runs once: ninja needs neither the sources nor the headers.
    for step in steps:
        add(step.object_name, (), step.command, f"compile {step.label}")
    for name, command in commands.stand_ins.items():
        add(name, (), command, f"prepare linking with {name}")
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
    timeout_s: float | None = None,
    *,
    is_for_target: bool = False,
) -> int:
    """Run the steps of the ninja file in ``directory`` that have not succeeded yet; all output goes to ``log_path``.

    The compilers are ended with it when this process ends in any way, when ``cancel`` is set, or when the time is up.

    Args:
        timeout_s: that time; None for ``ACCEL_COMPILE_TIMEOUT_S``.

    Returns:
        ninja's exit status, or the negative number of the signal that ended it.

    Raises:
        ToolchainError: it did not end in time.
        BuildCancelled: ``cancel`` was set.
    """
    require_exit_codes()
    # A killed compiler leaves its files there.
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = env.compiler_environment(is_for_target=is_for_target, NINJA_STATUS="[%f/%t] ", TMPDIR=str(temporary))
    timeout_s = env.ACCEL_COMPILE_TIMEOUT_S.get() if timeout_s is None else timeout_s
    deadline = time.monotonic() + timeout_s
    with (
        log_path.open("w") as log,
        log_path.open(errors="replace") as written,
        _watched(command, cwd=directory, environment=environment, output=log) as process,
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
                    f"Set ACCEL_COMPILE_TIMEOUT_S to more than {timeout_s:g}, or ACCEL_MAX_JOBS=1 if memory is short.",
                )
            time.sleep(_POLL_S)
    return int(process.returncode)


@contextmanager
def _watched(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], output: IO[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a session of its own, which ends with the ``with`` block or with this process.

    Processes left by a program that succeeded are kept.
    """
    watcher = start(
        ["/bin/sh", "-c", _WATCHER],
        stdin=subprocess.PIPE,
        bufsize=0,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C at the terminal is not meant for it
    )
    assert watcher.stdin is not None
    process: subprocess.Popen[bytes] | None = None
    try:
        with watcher.stdin as pipe:
            process = start(
                ["/bin/sh", "-c", _STARTER, "sh", *command],
                cwd=cwd,
                env=environment,
                stdin=pipe,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                # Closing the pipe is not enough: a process that was forked meanwhile may have it open, too.
                word = "ended" if process.poll() == 0 else "end"
                with contextlib.suppress(BrokenPipeError):
                    pipe.write(f"{process.pid}\n{word}\n".encode())
    finally:
        for stopped in filter(None, (watcher, process)):
            try:
                stopped.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                logger.warning("Process %d could not be ended. End it with: kill -9 %d", stopped.pid, stopped.pid)


def finished_outputs(directory: Path) -> set[str]:
    """The files that ninja has made in ``directory``, according to its own log; a step that failed is not in it."""
    try:
        lines = (directory / ".ninja_log").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {row[3] for row in rows if len(row) > 3 and (directory / row[3]).exists()}


def _path(text: str) -> str:
    return re.sub(r"([$ :])", r"$\1", text)


def _value(text: str) -> str:
    return text.replace("$", "$$")


def find_ninja() -> str:
    """The first ninja that runs: of this Python's environment, of its package ``ninja``, or on PATH.

    Raises:
        ToolchainError: no ninja runs, or this process cannot learn whether one does.
    """
    require_exit_codes()
    places: list[str | None] = [str(Path(sys.executable).parent)]
    try:
        import ninja  # it may be missing, or broken

        places.append(ninja.BIN_DIR)
    except Exception as error:
        logger.debug("the package ninja cannot be used: %s", error)
    on_path = [directory or os.curdir for directory in os.get_exec_path()]
    reasons = []
    for program in dict.fromkeys(shutil.which("ninja", path=place) for place in (*places, *on_path)):
        if program is None:
            continue
        try:
            version = run([program, "--version"])
        except ToolchainError as error:
            if error.remedy == OUT_OF_RESOURCES or remedy_of_limit(error.message):
                raise
            reasons.append(error.message)
            continue
        if version.ok:
            return program
        reasons.append(f"{program} does not run: {version.errors.strip()}")
    if reasons:
        raise ToolchainError(f"No ninja works. {'; '.join(reasons)}.", "Reinstall it: `pip install ninja`.")
    raise ToolchainError(
        "No ninja: neither the Python package 'ninja' nor a program of that name on PATH.",
        "Install it: `pip install ninja`.",
    )
