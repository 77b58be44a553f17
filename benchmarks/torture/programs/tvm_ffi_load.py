"""``tvm_ffi.cpp.load`` as its documentation shows it."""

import tvm_ffi.cpp
from _main import main, parts


def load_op(sources, flags):
    includes = [str(sources / "first"), str(sources)]
    module = tvm_ffi.cpp.load(
        "torture",
        cpp_files=[str(sources / "op_tvm_ffi.cpp"), *parts(sources)],
        extra_include_paths=includes,
        extra_cflags=flags,
    )
    return module.value


main(load_op)
