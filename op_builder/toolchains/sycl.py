"""Which toolchain compiles a SYCL op: a pure choice over facts, each candidate accepted or rejected with a reason.

``icpx``: oneAPI's compiler, as torch's own SYCL extensions use it. ``ipex``: the same compiler and, in
``builder()``, the extension of intel_extension_for_pytorch, for a torch that has no SYCL support of its own.
``sycl-rtc``: the host side by the ordinary C++ compiler, the kernels at run time by the SYCL runtime; needs no oneAPI
installation. The first two were never run on hardware by this project.
"""

from __future__ import annotations

import enum
import importlib.util
import shutil
from dataclasses import dataclass

from op_builder import env
from op_builder.errors import EnvironmentValueError
from op_builder.system.outcomes import CheckOutcome, Failed, Passed
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY, SyclRuntime, find_ahead_runtime, find_runtime


class SyclToolchain(enum.Enum):
    """How a SYCL op is compiled."""

    ICPX = "icpx"
    IPEX = "ipex"
    RTC = "sycl-rtc"

    @property
    def is_ahead(self) -> bool:
        """Whether kernels are compiled ahead of time."""
        return self is not SyclToolchain.RTC


@dataclass(frozen=True)
class SyclFacts:
    """What the choice depends on.

    Attributes:
        torch_xpu: version of the SYCL toolkit that torch was built with, None for no XPU build.
        icpx: path of oneAPI's compiler, None where it is not on PATH.
        has_ipex: whether intel_extension_for_pytorch is installed.
        runtime: the SYCL runtime with its headers, for the kernels that it compiles.
        ahead_runtime: the runtime that icpx links programs with.
        has_kernel_texts: whether the op's kernels are texts apart from its host code.
        asked: the toolchain that the user selected.
    """

    torch_xpu: str | None
    icpx: str | None
    has_ipex: bool
    runtime: SyclRuntime | None
    has_kernel_texts: bool
    asked: str | None = None
    ahead_runtime: SyclRuntime | None = None


def gather_facts(*, has_kernel_texts: bool) -> SyclFacts:
    """The facts of this machine and environment.

    Raises:
        EnvironmentValueError: ACCEL_SYCL_TOOLCHAIN names no toolchain.
    """
    asked = env.ACCEL_SYCL_TOOLCHAIN.get()
    names = [toolchain.value for toolchain in SyclToolchain]
    if asked is not None and asked not in names:
        raise EnvironmentValueError(env.ACCEL_SYCL_TOOLCHAIN.name, asked, f"one of {', '.join(names)}")
    icpx = shutil.which("icpx")
    return SyclFacts(
        torch_xpu=torch_install().xpu,
        icpx=icpx,
        has_ipex=importlib.util.find_spec("intel_extension_for_pytorch") is not None,
        runtime=find_runtime(),
        has_kernel_texts=has_kernel_texts,
        asked=asked,
        ahead_runtime=find_ahead_runtime(icpx) if icpx is not None else None,
    )


def candidates(facts: SyclFacts) -> list[CheckOutcome]:
    """Every toolchain by its name, best first: kernels compiled ahead of time start without delay."""
    return [_candidate(toolchain, facts) for toolchain in SyclToolchain]


def choose(facts: SyclFacts) -> CheckOutcome:
    """The first toolchain that is accepted; else the one whose remedy is the shortest way to a working op."""
    found = candidates(facts)
    accepted = next((candidate for candidate in found if isinstance(candidate, Passed)), None)
    if accepted is not None:
        return accepted
    nearest = facts.asked or (SyclToolchain.RTC if facts.has_kernel_texts else SyclToolchain.ICPX).value
    return next(candidate for candidate in found if candidate.name == nearest)


_ICPX_REMEDY = "Install Intel's oneAPI DPC++ compiler and source its setvars.sh."


def _candidate(this: SyclToolchain, facts: SyclFacts) -> CheckOutcome:
    name = this.value
    if facts.asked not in (None, name):
        return Failed(name, f"ACCEL_SYCL_TOOLCHAIN={facts.asked} selects another.", "Unset it.")
    if this is SyclToolchain.RTC:
        return _run_time_compiler(facts)
    if this is SyclToolchain.ICPX and facts.torch_xpu is None:
        return Failed(name, "torch is not an XPU build.", "Install a torch for XPU (download.pytorch.org/whl/xpu).")
    if this is SyclToolchain.IPEX and not facts.has_ipex:
        return Failed(name, "intel_extension_for_pytorch is not installed.", "Install it, or use another toolchain.")
    if facts.icpx is None:
        return Failed(name, "icpx is not on PATH.", _ICPX_REMEDY)
    if facts.ahead_runtime is None:
        # Not the wheels: they would be a second libsycl in the process.
        return Failed(name, f"neither {facts.icpx}'s own installation nor Python's has a SYCL runtime.", _ICPX_REMEDY)
    by = "by intel_extension_for_pytorch" if this is SyclToolchain.IPEX else f"torch for XPU {facts.torch_xpu}"
    return Passed(name, f"{facts.icpx}, {by}")


def _run_time_compiler(facts: SyclFacts) -> CheckOutcome:
    name = SyclToolchain.RTC.value
    if not facts.has_kernel_texts:
        return Failed(
            name,
            "the op's kernels are part of its host code, which only a SYCL compiler can compile.",
            "Use icpx, or provide the kernels as free functions in separate files (kernel_sources()).",
        )
    if facts.runtime is None:
        return Failed(name, "no SYCL runtime with its headers is installed.", INSTALL_REMEDY)
    if facts.runtime.kernel_compiler is None:
        return Failed(
            name,
            f"the SYCL runtime in {facts.runtime.prefix} has no kernel compiler (libsycl-jit.so).",
            INSTALL_REMEDY,
        )
    return Passed(name, f"libsycl {facts.runtime.version} in {facts.runtime.prefix}")
