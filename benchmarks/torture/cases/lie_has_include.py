"""a header that the source only asks for (__has_include) appears"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.require_native()
    bench.write(1, '#if __has_include("extra.h")\n#undef VALUE\n#define VALUE 2\n#endif\n')
    bench.prepare()
    (bench.sources / "extra.h").touch()
    return bench.judge(bench.load(), 2)
