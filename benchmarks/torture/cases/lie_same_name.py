"""another project has an op of the same name, and both are used in turn"""

import shutil

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    other = shutil.copytree(bench.sources, bench.root / "other_project")
    mine, bench.sources = bench.sources, other
    bench.write(2)
    bench.prepare(expected=2)
    bench.sources = mine
    return bench.judge(bench.load(), 1, compiles=False)
