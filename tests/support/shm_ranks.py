"""Ranks that share memory, as processes: shm_cases.py has what they do.

A process of its own imports torch and loads the op once, and forks the ranks of each case from that: a case takes
milliseconds, and no thread of the test's own process is in its ranks.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 280  # guards against hangs alone


@dataclass(frozen=True)
class RankEnd:
    """How a rank's part of a case ended.

    Attributes:
        value: what it returned, None where it did not.
        error: the name of the exception's class, and its text; empty where there was none.
        facts: further facts in the exception.
        signal: that it was killed by; 0 where it was not.
    """

    value: Any
    error: str
    facts: dict[str, Any]
    signal: int


class Ranks:
    """Runs cases of shm_cases.py in as many processes as there are ranks."""

    def __init__(self, *options: str) -> None:
        self._mark = f"ACCEL_TEST_RANKS={uuid.uuid4()}"  # the ranks have it, and nobody else
        name, _, value = self._mark.partition("=")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.shm_cases", *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, name: value},
        )

    def shared_memory_holders(self) -> set[tuple[int, str]]:
        """Ranks, and this process, that have memory of the op open or mapped, and as what.

        That has no name in any file system. Other tests may have some at the same time.
        """
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = self._mark.encode() in (process / "environ").read_bytes().split(b"\0")
                if not is_ours and process.name != str(os.getpid()):
                    continue
                if "accel_shm_comm" in (process / "maps").read_text():
                    found.add((int(process.name), "maps"))
                for descriptor in (process / "fd").iterdir():
                    if "accel_shm_comm" in os.readlink(descriptor):
                        found.add((int(process.name), "fd"))
            except OSError:  # it ended, or is another user's
                continue
        return found

    def run(self, case: str, size: int, **arguments: Any) -> list[RankEnd]:
        """Each rank's end, by rank."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"case": case, "size": size, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT_S)
        if not ready:
            self._process.kill()
            raise AssertionError(f"{case} of {size} ranks did not end within {LIMIT_S} s")
        line = self._process.stdout.readline()
        assert line, f"the processes of {case} ended"
        return [RankEnd(**end) for end in json.loads(line)]

    def values(self, case: str, size: int, **arguments: Any) -> list[Any]:
        """What each rank returned; none may have failed."""
        ends = self.run(case, size, **arguments)
        assert [end.error for end in ends] == [""] * size, ends
        assert [end.signal for end in ends] == [0] * size, ends
        return [end.value for end in ends]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=LIMIT_S)


def shared_files() -> set[str]:
    """What lies in /dev/shm, but for what other tests and programs put there while these run."""
    if not os.path.isdir("/dev/shm"):
        return set()
    others = ("tmp", "torch_", "sem.", "psm_", "deepspeed")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}
