"""everybody may write to the cache's directory"""

import os

from benchmarks.torture.bench import UNSAFE, Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    for binary in bench.binaries():
        os.chmod(binary, 0o777)
        os.chmod(binary.parent, 0o777)
    run = bench.load()
    outcome = bench.judge(run, 1, clear=("writable", "not trusted", "permission denied"))
    if outcome.word == "right" and not run.compilers:
        return Outcome(UNSAFE, "it opened a file that everybody may change, without a word")
    return outcome
