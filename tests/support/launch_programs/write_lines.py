"""A rank that writes much: short lines in pieces and long lines; ends with status 3 after all ranks have written."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

letter = chr(ord("a") + int(os.environ["RANK"]))
for number in range(1500):
    for piece in (letter, letter * (20_000 if number % 30 == 0 else 10), "\n"):
        sys.stdout.write(piece)
Path(f"wrote{letter}").touch()
while len(list(Path().glob("wrote*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
sys.exit(3)
