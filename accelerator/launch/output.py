"""Relaying the output of ranks in whole lines, and reporting their failures."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from accelerator.errors import LaunchError
from accelerator.launch.processes import log
from op_builder.system.records import Schema, is_int32, is_number, is_string, require

# Ranks report a failure as one line with this mark: to a pipe of this host's launcher, under MPI and Slurm to standard
# error; another host's launcher then to its own. Writing up to this many bytes to a pipe is atomic.
_MARK = "\x1eaccel-launch failure "
_MOST_LINE_BYTES = 4096
_MOST_TAIL_BYTES = 2500
_TAIL_LINES = 20

_PIECE_BYTES = 1 << 16


def make_log_directory(directory: str) -> None:
    """Create the directory and its parents, or raise LaunchError."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        message = f"--log_dir {directory} cannot be created on {socket.gethostname()}: {error.strerror}."
        raise LaunchError(message, "Choose a writable directory.") from None


def exit_status(exit_code: int) -> int:
    """The exit status as shells report it; ``exit_code`` is minus the signal number if a signal ended the process."""
    return exit_code if exit_code >= 0 else 128 - exit_code


@dataclass(frozen=True)
class Failure:
    """A rank that ended with an error.

    Attributes:
        exit_code: its exit status, or minus the signal number.
        time_s: its end, by its host's clock, in seconds since the epoch.
        tail: the last lines that it wrote to standard error.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    exit_code: int
    time_s: float
    tail: str = ""

    def __str__(self) -> str:
        cause = f"with exit status {self.exit_code}"
        if self.exit_code < 0:
            known = {int(number): number.name for number in signal.Signals}
            cause = f"by signal {-self.exit_code} ({known.get(-self.exit_code, 'unknown')})"
        parts = [f"rank {self.rank} (local rank {self.local_rank}, pid {self.pid}) on {self.host} ended {cause}"]
        if self.tail:
            parts.append("Its last lines on standard error:")
            parts += [f"  | {line}" for line in self.tail.splitlines()]
        return "\n".join(parts)

    def to_line(self) -> str:
        """One line of ASCII for another process of the launcher, with the newline; a long tail loses its beginning."""
        short = self
        while len(line := f"{_MARK}{json.dumps(asdict(short))}\n") > _MOST_LINE_BYTES:
            short = replace(short, tail=short.tail[len(short.tail) // 4 + 1 :])
        return line

    @classmethod
    def from_line(cls, line: str) -> Failure | None:
        """The failure in a line, None if it has none.

        Other text may precede the mark: a rank's last line may lack a newline.
        """
        _, mark, text = line.partition(_MARK)
        if not mark:
            return None
        try:
            facts = json.loads(text)
            require(facts, _FAILURE)
        except (ValueError, RecursionError):  # mixed with another writer's output
            return None
        return cls(**facts)


_FAILURE: Schema = {
    name: {"int": is_int32, "float": is_number, "str": is_string}[kind]
    for name, kind in Failure.__annotations__.items()
}


class Relay:
    """A thread that copies a pipe to a descriptor in whole lines, progress bars immediately.

    Args:
        reader, target: the pipe, which stays open, and the descriptor.
        log_path: a file for another copy.
        failures: failures in the output are appended to this list instead of copied; None: they are copied.
        line_timeout_s: time to wait for the rest of a line, so that lines of ranks do not mix.
    """

    def __init__(
        self,
        reader: int,
        target: int,
        log_path: str | None = None,
        failures: list[Failure] | None = None,
        line_timeout_s: float = 0.5,
    ) -> None:
        self._reader, self._target, self._failures = reader, target, failures
        self._line_timeout_s = line_timeout_s
        self._log_path, self._log = log_path, -1
        self._tail = b""
        self._partial_line = b""
        self._due_s = 0.0
        self._lock = threading.Lock()
        self._write_log(b"")
        self._thread = threading.Thread(target=self._run, name="accel-launch relay", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest of the pipe's content, without waiting for processes that still write."""
        while self._thread.is_alive() and _wait_readable(self._reader, 0):
            self._thread.join(0.02)
        with self._lock:
            self._write(len(self._partial_line))

    @property
    def tail(self) -> str:
        """The last lines."""
        lines = self._tail.decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def _run(self) -> None:
        while True:
            must_wait = not self._partial_line or (
                self._failures is not None and _MARK[:1].encode() in self._partial_line
            )
            is_readable = _wait_readable(self._reader, None if must_wait else self._due_s - time.monotonic())
            with self._lock:
                piece = os.read(self._reader, _PIECE_BYTES) if is_readable else b""
                if piece:
                    self._append(piece)
                else:
                    self._write(len(self._partial_line))
            if is_readable and not piece:
                return

    def _append(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_MOST_TAIL_BYTES:]
        self._write_log(piece)
        if not self._partial_line:
            self._due_s = time.monotonic() + self._line_timeout_s
        self._partial_line += piece
        end = self._partial_line.rfind(b"\n") + 1
        if b"\r" in self._partial_line[end:] or len(self._partial_line) - end >= _PIECE_BYTES:
            end = len(self._partial_line)
        if end:
            self._write(end)
            self._due_s = time.monotonic() + self._line_timeout_s

    def _write_log(self, piece: bytes) -> None:
        """Append to the log; log the first error only, for example of a full disk, and continue without the file."""
        if self._log_path is None:
            return
        try:
            if self._log < 0:
                self._log = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            _write_all(self._log, piece)
        except OSError as error:
            log(f"{self._log_path}: {error.strerror}. The output continues without this file.", "warning")
            self._log_path = None

    def _write(self, end: int) -> None:
        text, self._partial_line = self._partial_line[:end], self._partial_line[end:]
        for line in text.splitlines(keepends=True):  # one by one: longer writes could mix with other ranks' lines
            rest = line
            if self._failures is not None and (failure := Failure.from_line(line.decode(errors="replace"))):
                self._failures.append(failure)
                rest = line.partition(_MARK.encode())[0]
            with contextlib.suppress(OSError), _alone_in_pipe(self._target):  # the reader has ended; the ranks continue
                _write_all(self._target, rest)


_pipes: dict[int, threading.Lock] = {}


@contextlib.contextmanager
def _alone_in_pipe(descriptor: int) -> Iterator[None]:
    """Keep other ranks and threads from writing to a pipe, which may split lines of more than ``PIPE_BUF`` bytes."""
    import fcntl  # Windows has none

    status = os.fstat(descriptor)
    if not stat.S_ISFIFO(status.st_mode):
        yield
        return
    with _pipes.setdefault(status.st_ino, threading.Lock()):  # a record lock is the whole process's
        is_locked = _lock_record(descriptor)
        try:
            yield
        finally:
            if is_locked:
                fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _lock_record(descriptor: int) -> bool:
    """Lock it against other processes; False if the system has no such locks for it."""
    import fcntl

    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            return True
        except OSError as error:
            # The kernel believes in a deadlock when a process holds one pipe and waits for another, in two threads.
            if error.errno != errno.EDEADLK:
                return False
        time.sleep(0.001)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _wait_readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()  # select.select() takes no descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))
