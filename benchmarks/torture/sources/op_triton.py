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


def note(*, cache_hit, **_):
    if not cache_hit:
        print("compiled")


def value():
    triton.knobs.compilation.listener = note
    compiled = triton.compile(ASTSource(kernel, {"output": "*i32"}), target=GPUTarget("cuda", 90, 32))
    ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
    found = re.search(r"mov\.b32\s+%r\d+, (\d+);", ptx)
    # A whole ELF file has its section headers, 64 bytes each: their place and number are in its first bytes.
    place, number = int.from_bytes(cubin[40:48], "little"), int.from_bytes(cubin[60:62], "little")
    is_whole = ptx.rstrip().endswith("}") and 0 < place <= len(cubin) - 64 * number
    return int(found[1]) if found and is_whole else -1
