"""Instruction sets of this CPU, as the native kernels see them.

``csrc/kernels/cpu/isa.cpp`` gives the same answer (a test compares the two). This module needs neither torch nor a
compiler, so that the report can show it. Its compiler flags are for ops that are built for this machine only: the
project's own kernels are compiled for every instruction set.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from op_builder import env
from op_builder.errors import EnvironmentValueError

_CPUINFO = Path("/proc/cpuinfo")
_X86_MACHINES = ("x86_64", "amd64")
_ARM_MACHINES = ("aarch64", "arm64")

# The features that each instruction set needs, by Linux's names. Linux does not list a feature whose registers it does
# not save on a context switch, so these flags cover both the CPU and the operating system.
_AVX2_FLAGS = frozenset({"avx", "avx2", "fma", "f16c"})
_AVX512_FLAGS = _AVX2_FLAGS | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}

# The x86-64 micro-architecture levels of the System V ABI, highest first.
_LEVELS = (
    ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    ("x86-64-v3", ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe")),
    ("x86-64-v2", ("sse4_2", "popcnt", "ssse3")),
)


def isas_of(machine: str, flags: frozenset[str]) -> tuple[str, ...]:
    """Instruction sets, best last, of a CPU of architecture ``machine`` with these feature flags."""
    machine = machine.lower()
    if machine in _ARM_MACHINES:
        return ("baseline", "neon")
    if machine not in _X86_MACHINES or not flags >= _AVX2_FLAGS:
        return ("baseline",)
    return ("baseline", "avx2", "avx512") if flags >= _AVX512_FLAGS else ("baseline", "avx2")


@functools.cache
def supported_isas() -> tuple[str, ...]:
    """Instruction sets that kernels can use on this machine, best last."""
    return isas_of(platform.machine(), cpu_features())


def chosen_isa() -> str:
    """The instruction set that kernels will use: the best supported, or ``ACCEL_CPU_ISA``.

    Raises:
        EnvironmentValueError: ``ACCEL_CPU_ISA`` names an instruction set that this machine lacks.
    """
    name = env.ACCEL_CPU_ISA.get()
    return best_isa(supported_isas(), name)


def best_isa(supported: tuple[str, ...], cap: str | None) -> str:
    """The last of ``supported``, or ``cap`` where one is given.

    Raises:
        EnvironmentValueError: ``cap`` is not among ``supported``.
    """
    if cap is None:
        return supported[-1]
    if cap not in supported:
        raise EnvironmentValueError(env.ACCEL_CPU_ISA.name, cap, f"one this CPU can run: {', '.join(supported)}")
    return cap


@functools.cache
def cpu_features() -> frozenset[str]:
    """The names of the CPU features that Linux lists, which are those that programs may use."""
    return frozenset((_cpu_fact("flags") or _cpu_fact("Features")).split())


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """The CPU's name as Linux reports it, else as Python does."""
    return _cpu_fact("model name", cpuinfo) or platform.processor() or platform.machine()


def _cpu_fact(name: str, cpuinfo: Path = _CPUINFO) -> str:
    """The first value of ``name`` in Linux's list of CPUs; empty if it is missing."""
    try:
        # Line by line: the kernel generates the text while it is read, and a machine may have hundreds of CPUs.
        with cpuinfo.open(errors="replace") as lines:
            pairs = (line.partition(":") for line in lines)
            return next((value.strip() for key, _, value in pairs if key.strip() == name), "")
    except OSError:
        return ""


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
