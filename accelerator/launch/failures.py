"""What is known of a rank that failed, how it is told, and which of several failed first."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass

# A launcher on another host, or a rank below an MPI's launcher, tells its failure in one line of standard error
# that begins so. It is short enough to be written in one piece beside others' lines.
_MARK = "\x1eaccel-launch failure "
_MOST_TAIL_BYTES = 2500
TAIL_LINES = 20


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
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code

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
        """One line for another process of the launcher, newline included."""
        return f"{_MARK}{json.dumps(asdict(self))}\n"

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
