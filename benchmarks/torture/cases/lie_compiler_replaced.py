"""the compiler is replaced in place by one with the same version text"""

from benchmarks.torture.bench import Bench, Outcome
from benchmarks.torture.cases.lie_flags import HEADER


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, HEADER)
    bench.replace_compilers("-DFLAG=1")
    bench.prepare()
    bench.replace_compilers("-DFLAG=2")
    return bench.judge(bench.load(), 2)
