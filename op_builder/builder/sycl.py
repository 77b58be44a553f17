"""The base class of SYCL builders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from op_builder import paths
from op_builder.builder.base import OpBuilder
from op_builder.builder.recipe import flag_list, text_list
from op_builder.plan import SYCL_HOST_RUNTIME, BuildPlan, Language, Source, SyclPlan

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome
    from op_builder.toolchains.sycl import SyclToolchain

_HOST_INCLUDES = ("kernels_sycl", "csrc")
# Products are fused only where a formula uses fma, as on the CPU and in CUDA.
_EXACT_KERNELS = "-ffp-contract=off"
AHEAD_DEFINE = "-DACCEL_SYCL_AHEAD"


class SYCLOpBuilder(OpBuilder):
    """An op with SYCL kernels, compiled by one of three toolchains.

    The kernels are free functions in files of their own, named by :meth:`kernel_sources`, which all toolchains compile.
    :meth:`sources` names the host code, which launches them through ``host/launch.h`` (see docs/sycl.md). A builder
    without :meth:`kernel_sources`, whose sources contain the SYCL code, needs ``icpx``.
    """

    def kernel_sources(self) -> list[str]:
        """Files with free-function kernels, named like sources."""
        return []

    def kernel_args(self) -> list[str]:
        """Flags for the kernel compiler."""
        return [_EXACT_KERNELS]

    def toolchain(self) -> CheckOutcome:
        """The toolchain that compiles the op, by its name, or why none can.

        Raises:
            EnvironmentValueError: ACCEL_SYCL_TOOLCHAIN is not the name of a toolchain.
        """
        # Imported in functions, because builders for other devices import this module, too.
        from op_builder.toolchains.sycl import choose, gather_facts

        return choose(gather_facts(has_kernel_texts=bool(self.kernel_sources())))

    def finish_plan(self, plan: BuildPlan) -> BuildPlan:
        owner = type(self)
        names = text_list(self.kernel_sources(), f"{owner.__qualname__}.kernel_sources()")
        kernels = [paths.resolve(name, owner) for name in names]
        from op_builder.toolchains.sycl import SyclToolchain

        chosen = SyclToolchain(self.toolchain().name)
        include_dirs = plan.include_dirs
        sources = plan.sources
        if kernels:
            own = [paths.native_root() / name for name in _HOST_INCLUDES]
            include_dirs = tuple(dict.fromkeys([*include_dirs, *own]))
            host = paths.native_root() / SYCL_HOST_RUNTIME
            sources = (Source(host, SYCL_HOST_RUNTIME, Language.CXX, ("-O1",)), *sources)
        if chosen.is_ahead:
            return _ahead(plan._replace(include_dirs=include_dirs, sources=sources), self, chosen, kernels)
        if kernels:
            from op_builder.toolchains.sycl_runtime import find_runtime
            from op_builder.toolchains.sycl_texts import GENERATED_SOURCE, collect_texts

            runtime = find_runtime()
            options = [*(runtime.kernel_options if runtime is not None else ()), *self.kernel_args()]
            texts = collect_texts(kernels, include_dirs, options, owner).as_source()
            sources = (*sources, Source(Path(GENERATED_SOURCE), GENERATED_SOURCE, Language.CXX, ("-O0",), texts))
        return plan._replace(include_dirs=include_dirs, sources=sources, sycl=SyclPlan(chosen.value))

    def build_checks(self) -> list[CheckOutcome]:
        from op_builder.toolchains.sycl import toolchain_checks

        return [*super().build_checks(), *toolchain_checks(self.toolchain, self.cache.memo)]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder.toolchains.sycl import load_checks

        return load_checks(self.toolchain, self.cache.memo, has_kernel_texts=bool(self.kernel_sources()))

    def sycl_extension(self) -> None:
        """Does nothing: ``builder()`` returns torch's or IPEX's extension with the same plan."""


def _ahead(plan: BuildPlan, builder: SYCLOpBuilder, chosen: SyclToolchain, kernels: list[Path]) -> BuildPlan:
    """The plan for a compiler that compiles the kernels with the host code; it reads them before each source."""
    from op_builder.toolchains.sycl_ahead import EXACT_FLAGS, target_devices

    sources = tuple(source._replace(language=Language.SYCL) for source in plan.sources)
    flags = (*EXACT_FLAGS, *flag_list(builder.kernel_args(), f"{type(builder).__qualname__}.kernel_args()"))
    if not kernels:
        return plan._replace(sources=sources, sycl=SyclPlan(chosen.value, target_devices(), flags=flags))
    sycl = SyclPlan(chosen.value, target_devices(), tuple(kernels), flags)
    return plan._replace(sources=sources, cxx_flags=(*plan.cxx_flags, AHEAD_DEFINE), sycl=sycl)
