"""What is known of a rank that failed, how it is told, and which of several failed first."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

# A launcher on another host, or a rank below an MPI's launcher, tells its failure in one line of standard error
# that begins so. It is short enough to be written in one piece beside others' lines: pipes promise that up to here.
_MARK = "\x1eaccel-launch failure "
_MOST_LINE_BYTES = 4096
_MOST_TAIL_BYTES = 2500
TAIL_LINES = 20


def exit_status(exit_code: int) -> int:
    """Of a process that ended with this status, or minus a signal's number: as shells have it."""
    return exit_code if exit_code >= 0 else 128 - exit_code


@dataclass(frozen=True)
class Failure:
    """A rank that ended with an error.

    Attributes:
        exit_code: its exit status, or minus the signal's number.
        time_s: when it ended, by its host's clock, in seconds since the epoch.
        tail: what it wrote last to standard error.
        message: what its error file says, if it left one.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    exit_code: int
    time_s: float
    tail: str = ""
    message: str = ""

    @property
    def exit_status(self) -> int:
        """What the launcher exits with: the rank's own status, 128 and the signal's number if one killed it."""
        return exit_status(self.exit_code)

    @property
    def cause(self) -> str:
        """``with exit status 3`` or ``by signal 9 (SIGKILL)``."""
        if self.exit_code >= 0:
            return f"with exit status {self.exit_code}"
        return f"by signal {-self.exit_code} ({signal_name(-self.exit_code)})"

    def __str__(self) -> str:
        told = f"rank {self.rank} (local rank {self.local_rank}, pid {self.pid}) on {self.host} ended {self.cause}"
        parts = [told]
        if self.message:
            parts.append(self.message)
        if self.tail:
            parts.append("The last it wrote to standard error:")
            parts += [f"  | {line}" for line in self.tail.splitlines()]
        return "\n".join(parts)

    def to_line(self) -> str:
        """One line of ASCII for another process of the launcher, newline included.

        Of what is too long for it, the message's beginning and the tail's end are kept.
        """
        room = _MOST_LINE_BYTES - len(_line_of(replace(self, tail="", message="")))
        message = _cut(self.message, room - min(_size_bytes(self.tail), room // 2))
        tail = _cut(self.tail[::-1], room - _size_bytes(message))[::-1]
        return _line_of(replace(self, tail=tail, message=message))

    @classmethod
    def from_line(cls, line: str) -> Failure | None:
        """The failure that a line tells, None for a line of anything else.

        The mark may stand behind other text: what a rank wrote last need not have ended its line.
        """
        _, mark, text = line.partition(_MARK)
        try:
            return cls(**json.loads(text)) if mark else None
        except (ValueError, TypeError):  # torn by somebody who wrote in between
            return None


def _line_of(failure: Failure) -> str:
    return f"{_MARK}{json.dumps(asdict(failure))}\n"


def _size_bytes(text: str) -> int:
    """What a text takes within JSON, which writes all but ASCII in six bytes or twelve."""
    return len(json.dumps(text)) - 2


def _cut(text: str, most_bytes: int) -> str:
    """As much of a text's beginning as takes at most that within JSON."""
    for index, character in enumerate(text):
        most_bytes -= _size_bytes(character)
        if most_bytes < 0:
            return text[:index]
    return text


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def tail_of(output: bytes) -> str:
    """The last lines of what a rank wrote."""
    lines = output[-_MOST_TAIL_BYTES:].decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The one that ended first; the others most often failed because of it."""
    return min(failures, key=lambda failure: failure.time_s, default=None)
