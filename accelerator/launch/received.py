"""Run a command with variables that come by standard input.

``python -I -S received.py COMMAND...``: the first line is a JSON object of variables; what follows it is the
command's. On a command line everybody on that host would see their values, which may be secret. They are there before
the command starts, so that Python finds its modules by them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: much may lie there that is named as modules here

from accelerator.launch.worker import become, tell
from op_builder import env as environment

RECEIVED = Path(__file__).resolve()


def receiving_command(python: str, command: list[str]) -> list[str]:
    """The command that runs ``command`` with the variables it is sent."""
    return [python, "-I", "-S", str(RECEIVED), *command]


def sent_line(variables: dict[str, str]) -> bytes:
    """What is to be written to its standard input first."""
    return json.dumps(variables).encode() + b"\n"


def main(command: list[str]) -> int:
    """Become the command; returns only where that fails, or where whoever was to send variables is gone."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # one by one: the rest is not ours
        if not byte:
            tell("standard input ended before the variables of this host came; is the launcher that sends them gone?")
            return 1
        line += byte
    return become(command, environment.child_environment(**json.loads(line)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
