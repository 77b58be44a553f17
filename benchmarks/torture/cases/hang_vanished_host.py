"""a host dies during a build in a shared directory; another host loads"""

import signal

from benchmarks.torture import filesystems
from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    with filesystems.two_hosts(bench.cache) as (one, other):
        bench.slow_compilers(3)
        bench.use_cache(one)
        killed = bench.start_until_compiling()
        killed.signal(signal.SIGKILL)
        killed.wait()
        bench.slow_compilers(0)
        bench.use_cache(other)
        return bench.judge(bench.load(), 1)
