"""The SYCL part of a plan: what each toolchain adds to the sources and flags of an op."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from op_builder import paths
from op_builder.plan import SYCL_HOST_RUNTIME, BuildPlan, Language, Source, SyclPlan
from op_builder.toolchains.sycl import SyclToolchain
from op_builder.toolchains.sycl_ahead import EXACT_FLAGS, target_devices
from op_builder.toolchains.sycl_runtime import find_runtime
from op_builder.toolchains.sycl_texts import GENERATED_SOURCE, collect_texts

# Products are fused only where a formula uses fma, as on the CPU and in CUDA.
EXACT_KERNELS = "-ffp-contract=off"
AHEAD_DEFINE = "-DACCEL_SYCL_AHEAD"
_HOST_INCLUDES = ("kernels_sycl", "csrc")


def with_sycl(
    plan: BuildPlan, toolchain: str, kernels: Sequence[Path], kernel_flags: Sequence[str], owner: type | None
) -> BuildPlan:
    """``plan`` with what the SYCL toolchain needs.

    Args:
        toolchain: a value of :class:`~op_builder.toolchains.sycl.SyclToolchain`.
        kernels: the files with free-function kernels; empty for an op whose sources hold its SYCL code.
        kernel_flags: flags for the kernel compiler.
        owner: the class relative to whose package the kernels' includes are named; None for this project.
    """
    chosen = SyclToolchain(toolchain)
    if kernels:
        own = [paths.native_root() / name for name in _HOST_INCLUDES]
        host = Source(paths.native_root() / SYCL_HOST_RUNTIME, SYCL_HOST_RUNTIME, Language.CXX, ("-O1",))
        include_dirs = tuple(dict.fromkeys([*plan.include_dirs, *own]))
        plan = plan._replace(include_dirs=include_dirs, sources=(host, *plan.sources))
    if chosen.is_ahead:
        return _ahead(plan, chosen, kernels, kernel_flags)
    if kernels:
        runtime = find_runtime()
        options = [*(runtime.kernel_options if runtime is not None else ()), *kernel_flags]
        text = collect_texts(list(kernels), plan.include_dirs, options, owner).as_source()
        generated = Source(Path(GENERATED_SOURCE), GENERATED_SOURCE, Language.CXX, ("-O0",), text)
        plan = plan._replace(sources=(*plan.sources, generated))
    return plan._replace(sycl=SyclPlan(chosen.value))


def _ahead(plan: BuildPlan, chosen: SyclToolchain, kernels: Sequence[Path], kernel_flags: Sequence[str]) -> BuildPlan:
    """The plan for a compiler that compiles the kernels with the host code; it reads them before each source."""
    sources = tuple(source._replace(language=Language.SYCL) for source in plan.sources)
    flags = (*EXACT_FLAGS, *kernel_flags)
    if not kernels:
        return plan._replace(sources=sources, sycl=SyclPlan(chosen.value, target_devices(), flags=flags))
    sycl = SyclPlan(chosen.value, target_devices(), tuple(kernels), flags)
    return plan._replace(sources=sources, cxx_flags=(*plan.cxx_flags, AHEAD_DEFINE), sycl=sycl)
