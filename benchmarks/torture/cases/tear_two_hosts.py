"""two hosts build the same op at once into a shared directory, then each loads again"""

from benchmarks.torture import filesystems
from benchmarks.torture.bench import Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    with filesystems.two_hosts(bench.cache) as (one, other):
        bench.slow_compilers(0.5)
        running = []
        for mount in (one, other):
            bench.use_cache(mount)
            running.append(bench.start())
        outcomes = [bench.judge(each.wait(), 1) for each in running]
        for mount in (one, other):
            bench.use_cache(mount)
            outcomes.append(bench.judge(bench.load(), 1))
        return worst(outcomes)
