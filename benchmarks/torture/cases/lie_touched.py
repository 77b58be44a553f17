"""a file is touched, with equal contents"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    bench.header.touch()
    return bench.judge(bench.load(), 1, compiles=False)
