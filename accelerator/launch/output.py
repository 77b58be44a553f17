"""What ranks write: passed on in whole lines, its end remembered; and the failures that are reported with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace

from accelerator.launch.errors import LaunchError

# Processes of the launcher on other hosts, and ranks below an MPI's launcher, report a failure as one line of standard
# error that begins so. A pipe takes a line of this length in one piece, whoever else writes.
_MARK = "\x1eaccel-launch failure "
_MOST_LINE_BYTES = 4096
_MOST_TAIL_BYTES = 2500
_TAIL_LINES = 20

_PIECE_BYTES = 1 << 16
_HOLD_S = 0.5  # how long the beginning of a line waits for the rest, so that lines of ranks do not mix


def make_log_directory(directory: str) -> None:
    """Make the directory and its parents, or raise a LaunchError."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        message = f"--log_dir {directory} cannot be made on {socket.gethostname()}: {error.strerror}."
        raise LaunchError(message, "Choose a directory that can be written.") from None


def exit_status(exit_code: int) -> int:
    """Of a process that ended with this status, or minus a signal's number: as shells report it."""
    return exit_code if exit_code >= 0 else 128 - exit_code


@dataclass(frozen=True)
class Failure:
    """A rank that ended with an error.

    Attributes:
        exit_code: its exit status, or minus the signal's number.
        time_s: when it ended, by its host's clock, in seconds since the epoch.
        tail: what it wrote last to standard error.
        message: of its error file, if it left one.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    exit_code: int
    time_s: float
    tail: str = ""
    message: str = ""

    def when(self) -> float:
        """For ``min()``: the rank that ended first; the others most often failed because of it."""
        return self.time_s

    def __str__(self) -> str:
        cause = f"with exit status {self.exit_code}"
        if self.exit_code < 0:
            known = {int(number): number.name for number in signal.Signals}
            cause = f"by signal {-self.exit_code} ({known.get(-self.exit_code, 'unknown')})"
        parts = [f"rank {self.rank} (local rank {self.local_rank}, pid {self.pid}) on {self.host} ended {cause}"]
        if self.message:
            parts.append(self.message)
        if self.tail:
            parts.append("Its last lines on standard error:")
            parts += [f"  | {line}" for line in self.tail.splitlines()]
        return "\n".join(parts)

    def to_line(self) -> str:
        """One line of ASCII for another process of the launcher, newline included.

        If it would be too long, the message's beginning and the tail's end are kept.
        """
        short = self
        while len(line := f"{_MARK}{json.dumps(asdict(short))}\n") > _MOST_LINE_BYTES:
            kept = len(short.message) * 3 // 4
            short = replace(short, tail=short.tail[len(short.tail) // 4 + 1 :], message=short.message[:kept])
        return line

    @classmethod
    def from_line(cls, line: str) -> Failure | None:
        """The failure of a line, None for any other line.

        The mark may follow other text: a rank's last line need not have an end.
        """
        _, mark, text = line.partition(_MARK)
        try:
            return cls(**json.loads(text)) if mark else None
        except (ValueError, TypeError):  # another writer has torn it
            return None


class Relay:
    """A thread that passes on what comes through a pipe, whole lines at once and a progress bar as it comes.

    Args:
        reader: the pipe; it stays open.
        target: the descriptor that gets it.
        log_path: a file that gets it, too.
        failures: gets the failures that are reported in it; None: they are passed on.
    """

    def __init__(
        self, reader: int, target: int, log_path: str | None = None, failures: list[Failure] | None = None
    ) -> None:
        self._reader, self._target, self._failures = reader, target, failures
        self._log = open(log_path, "ab", buffering=0) if log_path is not None else None  # noqa: SIM115
        self._tail = b""
        self._held = b""  # the beginning of a line
        self._due_s = 0.0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="accel-launch relay", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Pass on what is in the pipe; what other processes still write is not waited for."""
        while self._thread.is_alive() and _wait_readable(self._reader, 0):
            self._thread.join(0.02)
        with self._lock:
            self._pass_on(len(self._held))

    @property
    def tail(self) -> str:
        """The last lines."""
        lines = self._tail.decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def _run(self) -> None:
        while True:
            must_wait = not self._held or (self._failures is not None and _MARK[:1].encode() in self._held)
            is_readable = _wait_readable(self._reader, None if must_wait else self._due_s - time.monotonic())
            with self._lock:
                piece = os.read(self._reader, _PIECE_BYTES) if is_readable else b""
                if piece:
                    self._take(piece)
                else:
                    self._pass_on(len(self._held))
            if is_readable and not piece:
                return

    def _take(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_MOST_TAIL_BYTES:]
        if self._log is not None:
            self._log.write(piece)
        if not self._held:
            self._due_s = time.monotonic() + _HOLD_S
        self._held += piece
        end = self._held.rfind(b"\n") + 1
        if b"\r" in self._held[end:] or len(self._held) - end >= _PIECE_BYTES:
            end = len(self._held)
        if end:
            self._pass_on(end)
            self._due_s = time.monotonic() + _HOLD_S

    def _pass_on(self, end: int) -> None:
        text, self._held = self._held[:end], self._held[end:]
        for line in text.splitlines(keepends=True):  # one by one: longer pieces could mix with other ranks' lines
            rest = line
            if self._failures is not None and (failure := Failure.from_line(line.decode(errors="replace"))):
                self._failures.append(failure)
                rest = line.partition(_MARK.encode())[0]
            with contextlib.suppress(OSError):  # nobody reads it any more: the ranks continue
                while rest:
                    rest = rest[os.write(self._target, rest) :]


def _wait_readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()  # select.select() takes no descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))
