"""the disk is full at some stage of the build; later there is space"""

from benchmarks.torture import filesystems
from benchmarks.torture.bench import Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    outcomes = []
    for size in bench.full_or_quick((4, 16, 32, 64, 128, 256, 1024), (16, 64)):
        with filesystems.small_disk(bench.cache, size * 1024) as enlarge:
            full = bench.load()
            if full.status != 0:
                outcomes.append(bench.judge(full, 1, clear=("no space left", "disk is full")))
            enlarge()
            outcomes.append(bench.judge(bench.load(), 1))
    return worst(outcomes)
