"""the cache is read-only"""

from benchmarks.torture import filesystems
from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    with filesystems.read_only(bench.cache):
        return bench.judge(bench.load(), 1, clear=("read-only", "permission denied"), compiles=False)
