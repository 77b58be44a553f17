"""a header was edited: is the reason for the build given, in the log?"""

from benchmarks.torture.bench import RIGHT, Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.prepare()
    bench.write(2)
    run = bench.load(TORTURE_LOG="1")
    outcome = bench.judge(run, 2)
    if outcome.word == RIGHT and "value.h" not in run.output:
        return Outcome("silent", "the edited header is not named")
    return outcome
