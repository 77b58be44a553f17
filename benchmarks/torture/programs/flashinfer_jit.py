"""FlashInfer's ``gen_jit_spec(...).build_and_load()``, for a source without CUDA code."""

from _main import main, parts
from flashinfer.jit.core import gen_jit_spec


def load_op(sources, flags):
    includes = [str(sources / "first"), str(sources)]
    files = [str(sources / "op_tvm_ffi.cpp"), *parts(sources)]
    spec = gen_jit_spec("torture", files, extra_cflags=flags, extra_include_paths=includes)
    return spec.build_and_load().value


main(load_op)
