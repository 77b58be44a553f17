"""SGLang's ``load_jit``, for a source without CUDA code that exports its function itself."""

from _main import main, parts
from sglang.kernels.jit.utils.compile import load_jit


def load_op(sources, flags):
    includes = [str(sources / "first"), str(sources)]
    module = load_jit(
        "torture",
        cpp_files=[str(sources / "op_tvm_ffi.cpp"), *parts(sources)],
        extra_cflags=flags,
        extra_include_paths=includes,
        header_only=False,
    )
    return module.value


main(load_op)
