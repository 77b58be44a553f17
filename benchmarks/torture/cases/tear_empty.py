"""the binary in the cache is empty, as after a crash of the machine"""

from benchmarks.torture.bench import DAMAGED, Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    for binary in bench.binaries():
        with binary.open("rb+") as file:
            file.truncate(0)
    return bench.judge(bench.load(), 1, clear=DAMAGED)
