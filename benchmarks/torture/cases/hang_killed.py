"""killed at ten moments, five of them while it compiles or links, then loaded"""

import signal
import time
from collections.abc import Callable

from benchmarks.torture.bench import HANG, Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    return worst(killed_at(bench, bench.full_or_quick(10, 3), lambda: None))


def killed_at(bench: Bench, points: int, then: Callable[[], None], clear: tuple[str, ...] = ()) -> list[Outcome]:
    """Kill a build at moments from its start to its end; after each, call ``then`` and load."""
    bench.slow_compilers(1)
    started = time.monotonic()
    whole = bench.start_until_compiling()
    until_compiling_s = time.monotonic() - started
    seconds = bench.require(whole.wait()).seconds
    outcomes = []
    for point in range(points):
        bench.clear_cache()
        bench.write(2)
        share = (point + 0.5) / points
        if point % 2:
            killed = bench.start_until_compiling()
            time.sleep(share * (seconds - until_compiling_s))
        else:
            killed = bench.start()
            time.sleep(share * seconds)
        killed.signal(signal.SIGKILL)
        killed.wait()
        then()
        outcomes.append(bench.judge(bench.load(), 2, clear))
        if outcomes[-1].word == HANG:  # one is enough, and takes a minute
            break
    return outcomes
