"""In place of g++: a compile needs memory for a moment, and notes when it begins and ends. Args: a log, then g++'s."""

from __future__ import annotations

import os
import sys
import time


def note(text: bytes) -> None:
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, text)
    os.close(log)


if __name__ == "__main__":
    if any(word.endswith(".o.d") for word in sys.argv):
        note(b"+")
        held = b"x" * (1536 << 20)
        time.sleep(0.5)
        del held
        note(b"-")
    os.execvp("g++", ["g++", *sys.argv[2:]])
