"""the container has one core (a CPU quota), and the op has eight sources (compilers at once, time)"""

import time
from pathlib import Path

from benchmarks.torture import filesystems
from benchmarks.torture.bench import CROWDED, RIGHT, Bench, Outcome

PERIOD_US = 100_000  # the default of the kernel


def run(bench: Bench) -> Outcome:
    bench.require_native()
    for number in range(7):
        text = f"#include <iostream>\n#include <regex>\nint part{number}() {{ return {number}; }}\n"
        (bench.sources / f"part{number}.cpp").write_text(text)
    with filesystems.control_group("cpu", PERIOD_US, bench.root) as group:
        running = bench.start(group=group)
        at_once = before = 0
        while running.is_running():
            now = compilers_now(bench.root)
            at_once = max(at_once, min(before, now))  # one may end and the next one start while they are counted
            before = now
            time.sleep(0.02)
        run = running.wait()
    outcome = bench.judge(run, 1)
    if outcome.word != RIGHT:
        return outcome
    return Outcome(RIGHT if at_once <= 1 else CROWDED, f"{at_once} at once, {run.seconds:.0f} s")


def compilers_now(root: Path) -> int:
    """The number of compilers that compile a file of this bench."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            name = (process / "comm").read_text().strip()
        except OSError:  # it has just ended
            continue
        count += name in ("g++", "c++", "gcc", "cc") and b"-c" in words and str(root).encode() in b" ".join(words)
    return count
