"""a macro in a response file (@file) is changed"""

from benchmarks.torture.bench import Bench, Outcome
from benchmarks.torture.cases.lie_flags import HEADER


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, HEADER)
    flags = bench.root / "flags.rsp"
    flags.write_text("-DFLAG=1\n")
    bench.prepare(f"@{flags}")
    flags.write_text("-DFLAG=2\n")
    return bench.judge(bench.load(f"@{flags}"), 2)
