"""The tests of the launcher find their helpers, whatever directory they are started in."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
