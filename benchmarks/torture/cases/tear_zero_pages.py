"""power is lost right after a build: data that was not synced is lost, names remain"""

from benchmarks.torture import filesystems
from benchmarks.torture.bench import DAMAGED, Bench, Outcome


def run(bench: Bench) -> Outcome:
    with filesystems.loses_unsynced(bench.cache) as lose_power:
        bench.prepare()
        lose_power()
        return bench.judge(bench.load(), 1, clear=DAMAGED)
