"""a header is edited, and the op loaded again in the same process"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    return bench.judge(bench.load(TORTURE_VALUE="1", TORTURE_THEN="2"), 2)
