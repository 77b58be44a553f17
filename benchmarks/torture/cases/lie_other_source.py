"""other sources of the same name are loaded in the same process"""

import shutil

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    other = shutil.copytree(bench.sources, bench.root / "other")
    for name, old, new in (("value.h", "VALUE 1", "VALUE 2"), ("values.py", "VALUE = 1", "VALUE = 2")):
        file = other / name
        file.write_text(file.read_text().replace(old, new).replace("return 1", "return 2"))
    return bench.judge(bench.load(TORTURE_OTHER=str(other)), 2)
