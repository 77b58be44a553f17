"""torch is replaced by another release in place"""

from benchmarks.torture import contenders
from benchmarks.torture.bench import Bench, NotApplicable, Outcome


def run(bench: Bench) -> Outcome:
    if (
        bench.contender.program not in ("torch_cpp_extension.py", "accel_builder.py")
        or bench.contender.requirements
        or bench.contender.is_run_by_accel_ops
    ):
        raise NotApplicable("its op has no header of torch, or it runs on the newer torch only")
    header = "#include <torch/version.h>\n#undef VALUE\n#define VALUE TORCH_VERSION_MINOR\n"
    bench.write(1, header)
    with contenders.switchable_torch(bench.root) as (bench.python, switch):
        switch("old")
        bench.prepare(expected=13)
        switch("new")
        return bench.judge(bench.load(), 15)
