"""a header of the same name appears earlier in the search order"""

from benchmarks.torture.bench import Bench, Outcome


def run(bench: Bench) -> Outcome:
    bench.require_native()
    (bench.sources / "op.cpp").write_text((bench.sources / "op.cpp").read_text().replace('"value.h"', "<value.h>"))
    tvm_ffi = bench.sources / "op_tvm_ffi.cpp"
    tvm_ffi.write_text(tvm_ffi.read_text().replace('"value.h"', "<value.h>"))
    bench.prepare()
    (bench.sources / "first" / "value.h").write_text("#define VALUE 2\n")
    return bench.judge(bench.load(), 2)
