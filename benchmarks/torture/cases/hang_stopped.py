"""the process that builds is stopped, later killed; another one waits meanwhile"""

import signal
import time

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.slow_compilers(2)
    stopped = bench.start_until_compiling()
    stopped.signal(signal.SIGSTOP)
    bench.slow_compilers(0)
    waiting = bench.start()
    time.sleep(8)
    stopped.signal(signal.SIGKILL)
    stopped.wait()
    return bench.judge(waiting.wait(), 1)
