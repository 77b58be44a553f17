"""the compiler is a wrapper script that reads a variable (as Nix's do), and the variable is changed"""

from benchmarks.torture.bench import Bench, Outcome
from benchmarks.torture.cases.lie_flags import HEADER


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, HEADER)
    for name in ("g++", "c++"):
        real = bench.path / f"real-{name}"
        (bench.path / name).rename(real)
        (bench.path / name).write_text(f'#!/bin/sh\nexec "{real}" "$@" $NIX_CFLAGS_COMPILE\n')
        (bench.path / name).chmod(0o755)
    bench.prepare(NIX_CFLAGS_COMPILE="-DFLAG=1")
    return bench.judge(bench.load(NIX_CFLAGS_COMPILE="-DFLAG=2"), 2)
