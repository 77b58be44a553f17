"""everybody may write to the cache's directory"""

import os

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    binaries = bench.binaries()
    for binary in binaries:
        os.chmod(binary, 0o777)
        os.chmod(binary.parent, 0o777)
    clear = ("writable", "not trusted", "permission denied")
    return bench.load_untrusted(binaries, clear, "it opened a file that everybody may change")
