"""Run compilers and other tools, with a time limit and errors that give the cause."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from op_builder.errors import ToolchainError

OUT_OF_RESOURCES = (
    "The machine ran out of memory or processes: set ACCEL_MAX_JOBS=1, end other processes, or raise the limits "
    "(ulimit -u, ulimit -v, memory.max and pids.max of the control group)."
)
"""The remedy where no process can be started."""
LIMITS = (
    (r"Too many open files|out of file descriptors", "Raise the limit of open files (ulimit -n), or close files."),
    (r"File too large|File size limit exceeded", "Raise the limit of file sizes (ulimit -f)."),
    (r"C[Pp][Uu] time limit exceeded", "Raise the limit of CPU time (ulimit -t)."),
)
"""The system's messages about limits of a process, and what to do."""


class Finished(NamedTuple):
    """A tool that ran to its end: exit code, and stdout and stderr as text."""

    command: tuple[str, ...]
    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line of the output, which is the compiler's even if a wrapper prints, too."""
        return (self.output.strip().splitlines() or [""])[-1].strip()

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
    """Run ``command`` to its end, without waiting for processes that it leaves in the background.

    Raises:
        ToolchainError: it cannot be started, or runs longer than ``timeout_s`` seconds.
    """
    line = shlex.join(word if "\n" not in word else "..." for word in command)  # a program of `python -c`
    require_exit_codes()
    with contextlib.ExitStack() as files:
        with _start_errors(command):
            output, errors = files.enter_context(_scratch()), files.enter_context(_scratch())
        process = start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        try:
            _wait(process, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ToolchainError(
                f"{line} did not end within {timeout_s:g} s.", "Run that command in a shell to see where it blocks."
            ) from error
        if -process.returncode in (signal.SIGXFSZ, signal.SIGXCPU):
            ended = str(signal.strsignal(-process.returncode))
            raise ToolchainError(f"{line} was ended: {ended}.", remedy_of_limit(ended))
        # The output may hold paths, which the caller opens; the errors are for people.
        output.seek(0)
        errors.seek(0)
        text = errors.read().decode(errors="replace")
        return Finished(tuple(command), process.returncode, os.fsdecode(output.read()), text)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start ``command``, with the options of ``subprocess.Popen``.

    Raises:
        ToolchainError: it cannot be started.
    """
    with _start_errors(command):
        return subprocess.Popen(command, **options)


@contextlib.contextmanager
def _start_errors(command: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise ToolchainError(f"{command[0]} cannot be started now: {error.strerror}.", OUT_OF_RESOURCES) from error
        remedy = remedy_of_limit(str(error.strerror)) or "Check that it exists and may be executed."
        raise ToolchainError(f"{command[0]} cannot be started: {error.strerror}.", remedy) from error


def remedy_of_limit(message: str) -> str:
    """What to do if a message is the system's about a limit of this process; empty for any other."""
    return next((remedy for pattern, remedy in LIMITS if re.search(pattern, message)), "")


def require_exit_codes() -> None:
    """Check that this process can get the exit codes of its children.

    Raises:
        ToolchainError: it ignores SIGCHLD, so that the system drops exit codes and a failed compiler looks successful.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        raise ToolchainError(
            "This process ignores SIGCHLD, so it cannot learn whether a compiler failed.",
            "Call signal.signal(signal.SIGCHLD, signal.SIG_DFL) before the op is built.",
        )


def _scratch() -> IO[bytes]:
    """A file for a tool's output. Not a pipe: a server that the tool starts, and that lives on, would keep it open."""
    if hasattr(os, "memfd_create"):  # needs no disk space
        return os.fdopen(os.memfd_create("output"), "w+b")
    return tempfile.TemporaryFile()


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait until the tool ends. On a timeout or an exception, end it and the processes it started.

    Raises:
        subprocess.TimeoutExpired: its time is up.
    """
    # Popen.wait() with a timeout polls only every 50 ms; joining a thread does not poll.
    waiter = threading.Thread(target=process.wait, daemon=True)
    try:
        try:
            waiter.start()
        except RuntimeError:  # no thread may start here
            process.wait(timeout_s)
            return
        waiter.join(timeout_s)
        if waiter.is_alive():
            raise subprocess.TimeoutExpired(process.args, timeout_s)
    except BaseException:
        # A wrapper's compiler must not outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
