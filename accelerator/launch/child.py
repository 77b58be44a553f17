"""The launcher's helper processes: ``python -I -S child.py PART ARGUMENTS...``.

- ``rank JOB DESCRIPTOR PROGRAM...``: a rank, see :func:`accelerator.launch.rank.run`.
- ``receive PROGRAM...``: execute the program, see :func:`receive`.
- ``guard LAUNCH GRACE_S``: see :func:`accelerator.launch.processes.guarded`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: its modules may hide others

from accelerator.launch.processes import cannot_start, end_processes_of, log
from op_builder import env


def main(part: str, arguments: list[str]) -> int:
    """Returns the exit status."""
    if part == "rank":
        from accelerator.launch import rank

        return rank.run(arguments[0], int(arguments[1]), arguments[2:])
    if part == "receive":
        return receive(arguments)
    if not os.read(0, 1):  # the launcher was killed
        end_processes_of(arguments[0], float(arguments[1]))
    return 0


def receive(program: list[str]) -> int:
    """Execute the program with the environment variables in the first line of standard input, a JSON object.

    All users can read command lines, and values may be secret. Python needs the variables before it starts, to find its
    modules. Returns only if the program cannot start or the sender has ended.
    """
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # byte by byte: the program reads the rest
        if not byte:
            log("standard input ended before the environment variables arrived; the launcher that sends them has ended")
            return 1
        line += byte
    try:
        os.execvpe(program[0], program, env.child_environment(**json.loads(line)))
    except OSError as error:
        return cannot_start(program[0], error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
