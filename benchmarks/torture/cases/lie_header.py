"""an included header is edited"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    bench.write(2)
    return bench.judge(bench.load(), 2)
