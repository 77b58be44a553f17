"""CPATH names another directory of headers"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, "#include <from_cpath.h>\n")
    for value in (1, 2):
        (bench.root / f"cpath{value}").mkdir()
        (bench.root / f"cpath{value}" / "from_cpath.h").write_text(f"#undef VALUE\n#define VALUE {value}\n")
    bench.prepare(CPATH=str(bench.root / "cpath1"))
    return bench.judge(bench.load(CPATH=str(bench.root / "cpath2")), 2)
