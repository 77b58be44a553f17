"""another user owns the binary in the cache"""

import os

from benchmarks.torture.bench import OTHER_UID, Bench, NotApplicable, Outcome


def run(bench: Bench) -> Outcome:
    if os.geteuid() != 0:
        raise NotApplicable("needs root, to make a file of another user")
    bench.prepare()
    binaries = bench.binaries()
    for binary in binaries:
        os.chown(binary, OTHER_UID, OTHER_UID)
        os.chown(binary.parent, OTHER_UID, OTHER_UID)
    clear = ("owner", "owned by", "not trusted", "permission denied")
    return bench.load_untrusted(binaries, clear, "it opened the other user's file")
