"""the cache is removed while a build uses it"""

import shutil

from benchmarks.torture.bench import Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    bench.slow_compilers(1)
    running = bench.start_until_compiling()
    for path in bench.cache.iterdir():
        shutil.rmtree(path, ignore_errors=True)
    first = bench.judge(running.wait(), 1, clear=("was removed", "no such file"))
    bench.slow_compilers(0)
    return worst([first, bench.judge(bench.load(), 1)])
