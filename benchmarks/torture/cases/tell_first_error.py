"""the source has an error (clear error: the last ten lines name the file and the error)"""

from benchmarks.torture.bench import CLEAR, UNCLEAR, Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, "int broken = undeclared_name;\n")
    run = bench.load()
    outcome = bench.judge(run, 1)
    if outcome.word != UNCLEAR:
        return outcome
    last = [line for line in run.output.splitlines() if line.strip()][-10:]
    named = any("undeclared_name" in line and "value.h" in line for line in last)
    return Outcome(CLEAR if named else UNCLEAR, "" if named else last[-1][:160])
