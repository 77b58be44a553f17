"""power is lost at five moments of a build: data that was not synced is lost, names remain"""

from benchmarks.torture import filesystems
from benchmarks.torture.bench import DAMAGED, Bench, Outcome, worst
from benchmarks.torture.cases.hang_killed import killed_at


def run(bench: Bench) -> Outcome:
    with filesystems.loses_unsynced(bench.cache) as lose_power:
        return worst(killed_at(bench, bench.full_or_quick(5, 3), lose_power, DAMAGED))
