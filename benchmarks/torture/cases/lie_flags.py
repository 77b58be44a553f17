"""a flag is changed"""

from benchmarks.torture.bench import Bench, Outcome

HEADER = "#undef VALUE\n#define VALUE FLAG\n"


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, HEADER)
    bench.prepare("-DFLAG=1")
    return bench.judge(bench.load("-DFLAG=2"), 2)
