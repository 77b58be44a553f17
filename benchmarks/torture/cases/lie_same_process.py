"""the source is edited and loaded again in one process"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    return bench.judge(bench.load(TORTURE_VALUE="1", TORTURE_THEN="2"), 2)
