"""another user owns the binary in the cache"""

import os

from benchmarks.torture.bench import OTHER_UID, UNSAFE, Bench, NotApplicable, Outcome


def run(bench: Bench) -> Outcome:
    if os.geteuid() != 0:
        raise NotApplicable("needs root, to make a file of another user")
    bench.prepare()
    for binary in bench.binaries():
        os.chown(binary, OTHER_UID, OTHER_UID)
        os.chown(binary.parent, OTHER_UID, OTHER_UID)
    run = bench.load()
    outcome = bench.judge(run, 1, clear=("owner", "owned by", "not trusted", "permission denied"))
    if outcome.word == "right" and not run.compilers:
        return Outcome(UNSAFE, "it opened the other user's file without a word")
    return outcome
