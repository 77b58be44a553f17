"""Fails: now, or when a file with the name in the argument exists."""

import sys
import time
from pathlib import Path

while len(sys.argv) > 1 and not Path(sys.argv[1]).exists():
    time.sleep(0.1)
sys.exit(3)
