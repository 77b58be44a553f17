"""the source has 30 errors (clear error: the last ten lines have the first of them)"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, "".join(f"int broken{number} = undeclared_name{number};\n" for number in range(30)))
    return bench.judge(bench.load(), 1, clear=("value.h:2:14: error:",))
