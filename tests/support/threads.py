"""Work in several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Call ``work`` with 0 to ``count`` - 1, each in a thread, all at once; raise the first exception."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))
