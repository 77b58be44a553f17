"""Passing on what ranks write to their launcher's streams, while remembering its end, and when each rank ended.

Torch's agent asks after its processes ten times a second and learns no order among those that ended in
between; the first of them is what a user wants to know.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from accelerator.launch.errors import LaunchError
from accelerator.launch.failures import tail_of

_KEPT_BYTES = 8192
_PIECE_BYTES = 1 << 16
_DRAIN_S = 1.0
_HELD_S = 0.5  # the beginning of a line, so that the ranks' lines do not run into each other


def make_log_directory(directory: Path) -> None:
    """Make it, and what is above it.

    Raises:
        LaunchError: that cannot be done.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"--log_dir: {directory} cannot be made on {socket.gethostname()}: {error.strerror}.",
            "Choose a directory that can be written.",
        ) from None


@dataclass
class _Stream:
    """A pipe from a rank, and where what comes through it goes.

    Attributes:
        held: the beginning of a line, which waits for the rest until ``due_s`` (of the monotonic clock).
    """

    reader: int
    target: int
    keep: bytearray
    log: BinaryIO | None
    held: bytearray = field(default_factory=bytearray)
    due_s: float = math.inf

    def take(self, piece: bytes) -> None:
        """Pass on whole lines, and a progress bar as it comes."""
        self.held += piece
        end = self.held.rfind(b"\n") + 1
        if b"\r" in self.held[end:] or len(self.held) - end >= _PIECE_BYTES:
            end = len(self.held)
        if end > 0:
            self._write(end)
        if self.held and self.due_s == math.inf:
            self.due_s = time.monotonic() + _HELD_S

    def let_go(self) -> None:
        """Pass on what is held."""
        self._write(len(self.held))

    def _write(self, end: int) -> None:
        rest, self.held, self.due_s = bytes(self.held[:end]), self.held[end:], math.inf
        with contextlib.suppress(OSError):  # nobody reads it any more: the ranks go on
            while rest:
                rest = rest[os.write(self.target, rest) :]


@dataclass
class Observer:
    """A thread that reads the pipes of one host's ranks.

    Attributes:
        ended_s: by local rank, when its process ended, in seconds since the epoch; of the last attempt.
    """

    ended_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._tails: dict[int, bytearray] = {}
        self._writers: list[int] = []
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._stopping = False
        self.has_watched = False
        self._thread = threading.Thread(target=self._run, name="accel-launch observer", daemon=True)
        self._thread.start()

    def new_stream(self, local_rank: int, target: int, log: str | None) -> str:
        """A path that a rank's standard output or error can be opened at; what comes goes to ``target``.

        Args:
            target: descriptor 1 or 2 of this process; of the latter the end is remembered.
            log: a file that gets it, too.
        """
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        keep = bytearray()
        if target == 2:
            self._tails[local_rank] = keep
        stream = _Stream(reader, target, keep, open(log, "wb") if log else None)  # noqa: SIM115 - closed at its end
        with self._lock:
            self._writers.append(writer)
            self._selector.register(reader, selectors.EVENT_READ, stream)
        self._wake()
        return f"/dev/fd/{writer}"

    def watch(self, process_ids: Mapping[int, int]) -> None:
        """The ranks were started: these are their processes, by local rank."""
        self.has_watched = True
        with self._lock:
            for writer in self._writers:
                os.close(writer)
            self._writers.clear()
            self.ended_s.clear()
            for local_rank, process_id in process_ids.items():
                # Without such descriptors (before Linux 5.3), the agent's own order has to do.
                with contextlib.suppress(OSError, AttributeError):
                    descriptor = os.pidfd_open(process_id)
                    self._selector.register(descriptor, selectors.EVENT_READ, self._noting(local_rank, descriptor))
        self._wake()

    def stop(self) -> None:
        """Pass on what is still in the pipes, and end the thread."""
        self._stopping = True
        self._wake()
        self._thread.join()

    def tail(self, local_rank: int) -> str:
        """The last lines that a rank wrote to standard error."""
        return tail_of(bytes(self._tails.get(local_rank, b"")))

    def _noting(self, local_rank: int, descriptor: int) -> Callable[[], None]:
        def note() -> None:
            self.ended_s.setdefault(local_rank, time.time())
            self._selector.unregister(descriptor)
            os.close(descriptor)

        return note

    def _wake(self) -> None:
        os.write(self._wake_writer, b"!")

    def _run(self) -> None:
        deadline_s = math.inf
        while True:
            # Before the question, so that its answer has all that came before stop() or in a line's time.
            is_stopping, asked_s = self._stopping, time.monotonic()
            due_s = min((stream.due_s for stream in self._streams()), default=math.inf)
            wait_s = None if due_s == math.inf else max(0.0, due_s - asked_s)
            events = self._selector.select(0 if is_stopping else wait_s)
            with self._lock:
                for key, _ in events:
                    if isinstance(key.data, _Stream):
                        self._pass_on(key.data)
                    elif key.data is not None:
                        key.data()
                    else:
                        os.read(self._wake_reader, _PIECE_BYTES)
            if is_stopping:
                deadline_s = min(deadline_s, asked_s + _DRAIN_S)
            # What grandchildren still write is not waited for: they may go on for ever.
            is_over = is_stopping and (asked_s > deadline_s or not any(key.data for key, _ in events))
            for stream in self._streams():
                if is_over or stream.due_s <= asked_s:
                    stream.let_go()
            if is_over:
                return

    def _streams(self) -> list[_Stream]:
        with self._lock:
            return [key.data for key in self._selector.get_map().values() if isinstance(key.data, _Stream)]

    def _pass_on(self, stream: _Stream) -> None:
        try:
            piece = os.read(stream.reader, _PIECE_BYTES)
        except BlockingIOError:
            return
        if not piece:
            stream.let_go()
            self._selector.unregister(stream.reader)
            os.close(stream.reader)
            if stream.log is not None:
                stream.log.close()
            return
        stream.keep += piece
        del stream.keep[:-_KEPT_BYTES]
        if stream.log is not None:
            stream.log.write(piece)
            stream.log.flush()
        stream.take(piece)
