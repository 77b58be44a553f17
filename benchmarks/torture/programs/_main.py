"""What all programs do: load, print the value, and perhaps edit the source and load again in the same process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path


def main(load: Callable[[Path, list[str]], Callable[[], int]]) -> None:
    """Run ``PROGRAM SOURCES [FLAG ...]``; ``load(sources, flags)`` returns the op's function."""
    if "TORTURE_LOG" in os.environ:
        logging.basicConfig(level=logging.INFO)
    sources, flags = Path(sys.argv[1]), sys.argv[2:]
    print("value", load(sources, flags)(), flush=True)
    if "TORTURE_THEN" in os.environ:
        for name in ("value.h", "values.py"):
            header = sources / name
            header.write_text(header.read_text().replace(os.environ["TORTURE_VALUE"], os.environ["TORTURE_THEN"]))
        print("value", load(sources, flags)(), flush=True)
    if "TORTURE_OTHER" in os.environ:
        print("value", load(Path(os.environ["TORTURE_OTHER"]), flags)(), flush=True)
    print("cpu_s", sum(os.times()[:4]), flush=True)


def parts(sources: Path) -> list[str]:
    """More C++ sources of the op, where a case needs several."""
    return sorted(map(str, sources.glob("part*.cpp")))
