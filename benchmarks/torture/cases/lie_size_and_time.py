"""a header is edited, and has the same size and modification time as before"""

import os

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    before = bench.header.stat()
    bench.write(2)
    os.utime(bench.header, ns=(before.st_atime_ns, before.st_mtime_ns))
    return bench.judge(bench.load(), 2)
