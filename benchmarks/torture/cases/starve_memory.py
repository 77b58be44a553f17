"""the compiler is killed for lack of memory (by the kernel, in a control group)"""

from benchmarks.torture import filesystems
from benchmarks.torture.bench import Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    bench.require_compiler()
    with filesystems.control_group("memory", 8 << 20, bench.root) as group:
        first = bench.load(TORTURE_COMPILER_GROUP=str(group))
    return worst(
        [bench.judge(first, 1, clear=("memory", "signal 9", "sigkill", "killed")), bench.judge(bench.load(), 1)]
    )
