"""the binary in the cache is cut off"""

from benchmarks.torture.bench import DAMAGED, Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    for binary in bench.binaries():
        with binary.open("rb+") as file:
            file.truncate(binary.stat().st_size // 2)
    return bench.judge(bench.load(), 1, clear=DAMAGED)
