"""the container allows few processes (pids.max); later it allows more"""

from benchmarks.torture import filesystems
from benchmarks.torture.bench import Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    bench.require_compiler()
    outcomes = []
    for limit in bench.full_or_quick((2, 3, 4, 5, 6, 8, 12), (4, 8)):
        bench.clear_cache()
        with filesystems.control_group("pids", limit, bench.root) as group:
            run = bench.load(group=group, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        outcomes.append(bench.judge(run, 1, clear=("processes", "cannot fork", "new thread", "resource temporarily")))
        outcomes.append(bench.judge(bench.load(), 1))
    return worst(outcomes)
