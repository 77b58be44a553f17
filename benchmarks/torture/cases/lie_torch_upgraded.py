"""torch is replaced by another release in place"""

import sys
from pathlib import Path

from benchmarks.torture.bench import Bench, NotApplicable, Outcome
from benchmarks.torture.contenders import Environment, named, packages_of


def run(bench: Bench) -> Outcome:
    is_inductor = bench.contender.name == "Inductor C++"
    programs = ("torch_cpp_extension.py", "accel_builder.py", "deepspeed_builder.py")
    if bench.contender.program not in programs and not is_inductor:
        raise NotApplicable("its op has no header of torch")
    newer = named(["torch 2.15"])[0]
    if bench.contender is newer:
        raise NotApplicable("it is the newer torch")
    bench.write(1, "#include <torch/version.h>\n#undef VALUE\n#define VALUE TORCH_VERSION_MINOR\n")
    environment = Environment(bench.root, bench.contender)
    bench.python = environment.python
    environment.install_packages(packages_of(Path(sys.executable)))
    # Inductor's op has no number of torch in it; it must be right with the new one.
    bench.prepare(expected=1 if is_inductor else 13)
    environment.install_packages(packages_of(newer.python()))
    return bench.judge(bench.load(), 1 if is_inductor else 15)
