"""killed during a build, then loaded"""

import signal
import time

from benchmarks.torture.bench import HANG, Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    points = 3 if bench.is_quick else 10
    seconds = bench.prepare().seconds
    outcomes = []
    for point in range(points):
        bench.clear_cache()
        bench.write(2)
        killed = bench.start()
        time.sleep(seconds * (point + 0.5) / points)
        killed.signal(signal.SIGKILL)
        killed.wait()
        outcomes.append(bench.judge(bench.load(), 2))
        if outcomes[-1].word == HANG:  # one is enough, and takes a minute
            break
    return worst(outcomes)
