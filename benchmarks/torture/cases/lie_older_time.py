"""a header is replaced by an older file, as git or rsync do"""

import os
import time

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    bench.write(2)
    a_year_ago = time.time() - 365 * 86400
    os.utime(bench.header, (a_year_ago, a_year_ago))
    return bench.judge(bench.load(), 2)
