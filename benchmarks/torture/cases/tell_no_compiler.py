"""the cache is copied to a machine without a compiler"""

import os

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.prepare()
    empty = bench.root / "empty"
    empty.mkdir()
    for name in ("ninja", "sh", "uname", "ldconfig", "which"):
        for directory in os.environ["PATH"].split(":"):
            if os.path.exists(f"{directory}/{name}"):
                (empty / name).symlink_to(f"{directory}/{name}")
                break
    clear = ("no c++ compiler", "no working c++ compiler", "compiler is", "c++: not found", "g++: not found")
    return bench.judge(bench.load(PATH=str(empty)), 1, clear=clear)
