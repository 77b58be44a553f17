"""many ranks start together with an empty cache (compilers started, processor time of all)"""

from benchmarks.torture.bench import RIGHT, Bench, Outcome, worst


def run(bench: Bench) -> Outcome:
    ranks = bench.full_or_quick(64, 8)
    bench.slow_compilers(1)
    running = [bench.start() for _ in range(ranks)]
    runs = [each.wait(timeout_s=20.0 * ranks) for each in running]
    outcome = worst([bench.judge(each, 1) for each in runs])
    commands = len(running[0].compilers())
    figures = f"{ranks} ranks, {commands} compilers, {sum(each.cpu_s for each in runs):.0f} s"
    return Outcome(outcome.word, figures if outcome.word == RIGHT else f"{outcome.detail}; {figures}")
