"""many ranks start together with an empty cache (detail: compiler commands of all, processor seconds)"""

import resource

from benchmarks.torture.bench import RIGHT, Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    ranks = 4 if bench.is_quick else 16
    bench.slow_compilers(1)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = [bench.start() for _ in range(ranks)]
    runs = [each.wait(timeout_s=20.0 * ranks) for each in running]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = worst([bench.judge(each, 1) for each in runs])
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    commands = len(running[0].compilers())
    detail = f"{ranks} ranks, {commands} compiler commands, {seconds:.0f} s of processor time"
    return Outcome(outcome.word, detail if outcome.word == RIGHT else f"{outcome.detail}; {detail}")
