"""torch is replaced by another release in place"""

import sys
from pathlib import Path

from benchmarks.torture.bench import Bench, NotApplicable, Outcome
from benchmarks.torture.contenders import Environment, named, packages_of


def run(bench: Bench) -> Outcome:
    if bench.contender.program not in ("torch_cpp_extension.py", "accel_builder.py", "deepspeed_builder.py"):
        raise NotApplicable("its op has no header of torch")
    newer = named(["torch 2.15"])[0]
    if bench.contender is newer:
        raise NotApplicable("it is the newer torch")
    bench.write(1, "#include <torch/version.h>\n#undef VALUE\n#define VALUE TORCH_VERSION_MINOR\n")
    environment = Environment(bench.root, bench.contender)
    bench.python = environment.python
    environment.install_packages(packages_of(Path(sys.executable)))
    bench.prepare(expected=13)
    environment.install_packages(packages_of(newer.python()))
    return bench.judge(bench.load(), 15)
