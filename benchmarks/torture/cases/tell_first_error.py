"""the source has an error (clear error: the last ten lines name the file and the error)"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, "int broken = undeclared_name;\n")
    return bench.judge(bench.load(), 1, clear=("value.h:2:14: error:",))
