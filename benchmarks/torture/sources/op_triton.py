# The same function for Triton; values.py stands for the header. No GPU: the kernel is compiled for an explicit target.
import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from values import constant


@triton.jit
def kernel(output):
    tl.store(output, constant())


def value():
    compiled = triton.compile(ASTSource(kernel, {"output": "*i32"}), target=GPUTarget("cuda", 90, 32))
    return int(re.search(r"mov\.b32\s+%r\d+, (\d+);", compiled.asm["ptx"]).group(1))
