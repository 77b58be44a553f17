"""A rank that writes much, while the others do: short lines in pieces and long lines; ends with status 3."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

letter = chr(ord("a") + int(os.environ["RANK"]))


def wait_for_all(place: str) -> None:
    """Return when all ranks have called it."""
    Path(f"{place}-{letter}").touch()
    while len(list(Path().glob(f"{place}-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.001)


wait_for_all("begun")
for number in range(1500):
    for piece in (letter, letter * (20_000 if number % 30 == 0 else 10), "\n"):
        sys.stdout.write(piece)
        sys.stdout.flush()
wait_for_all("ended")
sys.exit(3)
