"""the cache is removed while a build uses it, when the first compiler starts and 1.5 s later"""

import shutil
import time

from benchmarks.torture.bench import Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    outcomes = []
    for delay_s in (0, 1.5):
        bench.clear_cache()
        bench.slow_compilers(3)
        running = bench.start_until_compiling()
        time.sleep(delay_s)
        for path in bench.cache.iterdir():
            shutil.rmtree(path, ignore_errors=True)
        outcomes.append(bench.judge(running.wait(), 1, clear=("was removed", "no such file")))
        bench.slow_compilers(0)
        outcomes.append(bench.judge(bench.load(), 1))
    return worst(outcomes)
