"""What ends the rest of a launch on this host when its launcher is gone, however that came.

``python -I -S guard.py LAUNCH GRACE_S``, with a pipe from the launcher as standard input: a byte says that the launch
has ended; the end of the pipe without one, that the launcher was killed. The mpirun below it would go on then, and so
would what ranks have started in sessions of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: much may lie there that is named as modules here

from accelerator.launch.orphans import VARIABLE, end_processes_of
from op_builder import env as environment


@contextmanager
def guarded(launch: str, grace_s: float) -> Iterator[None]:
    """While this lasts, what has the launch's variable on this host ends with this process."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), launch, str(grace_s)]
    variables = environment.child_environment(**{VARIABLE: None})  # who ends what is left of a launch spares it
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables, bufsize=0, start_new_session=True) as guard:
        assert guard.stdin is not None
        try:
            yield
        finally:
            with suppress(OSError):  # somebody has ended it
                guard.stdin.write(b".")


def main(arguments: list[str]) -> int:
    """Wait for the end of the driver or of the launch."""
    if not os.read(0, 1):
        end_processes_of(arguments[0], float(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
