"""Compiler flags for the CPU at hand, for ops that are built for this machine only.

The project's own kernels need none of this: they are compiled for every instruction set and
choose at load time.
"""

from __future__ import annotations

import platform

from op_builder.system.cpu_isa import cpu_features

# The x86-64 micro-architecture levels of the System V ABI, highest first.
_LEVELS = (
    ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    ("x86-64-v3", ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe")),
    ("x86-64-v2", ("sse4_2", "popcnt", "ssse3")),
)


def architecture_flag() -> str:
    """``-march=<level>``: a level by name instead of ``native``, so that a key distinguishes CPUs."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        features = cpu_features()
        level = next((name for name, needed in _LEVELS if features.issuperset(needed)), "x86-64")
        return f"-march={level}"
    if machine in ("aarch64", "arm64"):
        return "-march=armv8-a"
    if machine.startswith("ppc64"):
        return "-mcpu=native"
    return ""


def simd_define() -> str:
    """The define by which older extension sources choose their vector width."""
    features = cpu_features()
    if {"avx512f", "avx512vl"} <= features:
        return "-D__AVX512__"
    if "avx2" in features:
        return "-D__AVX256__"
    return "-D__SCALAR__"
