"""the project is moved to another directory"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    bench.sources = bench.sources.rename(bench.root / "moved")
    return bench.judge(bench.load(), 1, compiles=False)
