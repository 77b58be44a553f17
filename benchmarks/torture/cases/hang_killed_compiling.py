"""killed while the compiler runs, then loaded"""

import signal

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.slow_compilers(2)
    killed = bench.start_until_compiling()
    killed.signal(signal.SIGKILL)
    killed.wait()
    bench.slow_compilers(0)
    return bench.judge(bench.load(), 1)
