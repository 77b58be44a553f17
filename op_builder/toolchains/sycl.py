"""Which toolchain compiles a SYCL op, and whether toolchain, runtime and device work.

The choice is a pure function of facts, which accepts or rejects each candidate with a reason. The checks run compilers
and probes.

``icpx``: oneAPI's compiler, as torch's own SYCL extensions use it. ``ipex``: the same compiler and, in
``builder()``, the extension of intel_extension_for_pytorch, for a torch that has no SYCL support of its own.
``sycl-rtc``: the host side by the ordinary C++ compiler, the kernels at run time by the SYCL runtime; needs no oneAPI
installation. The first two were never run on hardware by this project.
"""

from __future__ import annotations

import enum
import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from op_builder import env
from op_builder.errors import IncompatibleOpError
from op_builder.system.outcomes import CheckOutcome, Failed, Passed, Rejection, checked, guarded
from op_builder.system.records import Memo
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.sycl_ahead import find_icpx
from op_builder.toolchains.sycl_devices import opencl_devices
from op_builder.toolchains.sycl_runtime import (
    INSTALL_REMEDY,
    REINSTALL_REMEDY,
    SyclRuntime,
    find_ahead_runtime,
    find_runtime,
)
from op_builder.toolchains.toolset import find_cxx

_TOOLCHAIN, _HOST = "SYCL toolchain", "SYCL host code"
_DEVICE, _COMPILER = "SYCL device", "SYCL kernel compiler"

# Quickly read, and the exception's constructor is in libsycl.
_PROBE = """#include <sycl/exception.hpp>
int main() { throw sycl::exception(sycl::errc::invalid, "probe"); }
"""


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
        requested: the toolchain that the user selected.
    """

    torch_xpu: str | None
    icpx: str | None
    has_ipex: bool
    runtime: SyclRuntime | None
    has_kernel_texts: bool
    requested: str | None = None
    ahead_runtime: SyclRuntime | None = None


def gather_facts(*, has_kernel_texts: bool) -> SyclFacts:
    """The facts of this machine and environment.

    Raises:
        EnvironmentValueError: ACCEL_SYCL_TOOLCHAIN names no toolchain.
    """
    requested = env.ACCEL_SYCL_TOOLCHAIN.get()
    icpx = shutil.which("icpx")
    return SyclFacts(
        torch_xpu=torch_install().xpu,
        icpx=icpx,
        has_ipex=importlib.util.find_spec("intel_extension_for_pytorch") is not None,
        runtime=find_runtime(),
        has_kernel_texts=has_kernel_texts,
        requested=requested,
        ahead_runtime=find_ahead_runtime(icpx) if icpx is not None else None,
    )


def candidates(facts: SyclFacts) -> list[CheckOutcome]:
    """Every toolchain by its name, best first: kernels compiled ahead of time start without delay."""
    return [checked(toolchain.value, partial(_detail, toolchain, facts)) for toolchain in SyclToolchain]


def choose(facts: SyclFacts) -> CheckOutcome:
    """The first toolchain that is accepted; else the one whose remedy is the shortest way to a working op."""
    found = candidates(facts)
    accepted = next((candidate for candidate in found if isinstance(candidate, Passed)), None)
    if accepted is not None:
        return accepted
    nearest = facts.requested or (SyclToolchain.RTC if facts.has_kernel_texts else SyclToolchain.ICPX).value
    return next(candidate for candidate in found if candidate.name == nearest)


_ICPX_REMEDY = "Install Intel's oneAPI DPC++ compiler and source its setvars.sh."
_XPU_REMEDY = "Install torch for XPU: `pip install torch --index-url https://download.pytorch.org/whl/xpu`."
_IPEX_REMEDY = "Install it: `pip install intel-extension-for-pytorch`."


def _detail(toolchain: SyclToolchain, facts: SyclFacts) -> str:
    """What a toolchain consists of; an IncompatibleOpError if it cannot be used."""
    if facts.requested not in (None, toolchain.value):
        raise IncompatibleOpError(f"ACCEL_SYCL_TOOLCHAIN={facts.requested} selects another.", "Unset it.")
    if toolchain is SyclToolchain.RTC:
        return _run_time_compiler(facts)
    if toolchain is SyclToolchain.ICPX and facts.torch_xpu is None:
        raise IncompatibleOpError("torch is not an XPU build.", _XPU_REMEDY)
    if toolchain is SyclToolchain.IPEX and not facts.has_ipex:
        raise IncompatibleOpError("intel_extension_for_pytorch is not installed.", _IPEX_REMEDY)
    if facts.icpx is None:
        raise IncompatibleOpError("icpx is not on PATH.", _ICPX_REMEDY)
    if facts.ahead_runtime is None:
        # Not the wheels: they would be a second libsycl in the process.
        reason = f"Neither {facts.icpx}'s own installation nor Python's has a SYCL runtime."
        raise IncompatibleOpError(reason, _ICPX_REMEDY)
    is_ipex = toolchain is SyclToolchain.IPEX
    return f"{facts.icpx}, {'by intel_extension_for_pytorch' if is_ipex else f'torch for XPU {facts.torch_xpu}'}"


def _run_time_compiler(facts: SyclFacts) -> str:
    if not facts.has_kernel_texts:
        raise IncompatibleOpError(
            "The op's kernels are part of its host code, which only a SYCL compiler can compile.",
            "Use icpx, or provide the kernels as free functions in separate files (kernel_sources()).",
        )
    if facts.runtime is None:
        raise IncompatibleOpError("No SYCL runtime with its headers is installed.", INSTALL_REMEDY)
    if facts.runtime.kernel_compiler is None:
        reason = f"The SYCL runtime in {facts.runtime.prefix} has no kernel compiler (libsycl-jit.so)."
        raise IncompatibleOpError(reason, INSTALL_REMEDY)
    return f"libsycl {facts.runtime.version} in {facts.runtime.prefix}"


def toolchain_checks(choose: Callable[[], CheckOutcome], memo: Memo) -> list[CheckOutcome]:
    """Whether an op's kernels and host side can be compiled with the toolchain that ``choose`` returns."""
    chosen = guarded(_TOOLCHAIN, choose)
    outcomes = [_chosen(chosen)]
    if isinstance(chosen, Passed):
        outcomes.append(checked(_HOST, lambda: host_check(SyclToolchain(chosen.name), memo)))
    return outcomes


def load_checks(choose: Callable[[], CheckOutcome], memo: Memo, *, has_kernel_texts: bool) -> list[CheckOutcome]:
    """Whether an op finds a runtime and a device, and what compiles its kernels, if they are texts."""
    outcomes = [checked(_DEVICE, lambda: device_check(memo))]
    if has_kernel_texts:
        chosen = guarded(_COMPILER, choose)
        if not (isinstance(chosen, Passed) and SyclToolchain(chosen.name).is_ahead):
            outcomes.append(checked(_COMPILER, lambda: kernel_compiler_check(memo)))
    return outcomes


def _chosen(chosen: CheckOutcome) -> CheckOutcome:
    if isinstance(chosen, Passed):
        return Passed(_TOOLCHAIN, f"{chosen.name}: {chosen.detail}")
    if chosen.name == _TOOLCHAIN:  # the choice itself failed
        return chosen
    return Failed(_TOOLCHAIN, Rejection(f"{chosen.name}: {chosen.reason}", chosen.remedy))


def host_check(toolchain: SyclToolchain, memo: Memo) -> str:
    """The compiler of the host side compiles a small program against the SYCL runtime, and links it."""
    from op_builder.toolchains.probes import remembered_failure_of

    compiler = find_icpx(memo) if toolchain.is_ahead else None
    runtime = find_ahead_runtime(compiler.path) if compiler is not None else find_runtime()
    if runtime is None:
        raise IncompatibleOpError("No SYCL runtime with its headers is installed.", INSTALL_REMEDY)
    if compiler is not None:
        start, identity, program = [compiler.path, "-fsycl"], compiler.identity, compiler.path
    else:
        cxx = find_cxx(memo)
        if cxx.is_zig:
            reason = "ziglang's clang uses libc++, and libsycl's functions take the types of libstdc++."
            raise IncompatibleOpError(reason, "Install g++ or clang++, or set CXX to one.")
        start, identity, program = list(cxx.command), cxx.identity, cxx.path
    places = ["-isystem", str(runtime.include_dir), f"-L{runtime.library_dir}"]
    command = [*start, "-std=c++17", *places, "probe.cpp", "-lsycl", "-o", "probe"]
    subject, files = f"{identity} {runtime.version} {command}", [program, str(runtime.library)]
    failure = remembered_failure_of(command, {"probe.cpp": _PROBE}, subject, files, memo)
    if failure:
        raise IncompatibleOpError(f"{start[0]} cannot compile a small SYCL program: {failure}.", INSTALL_REMEDY)
    return f"{start[0]} with {runtime.library}"


def device_check(memo: Memo) -> str:
    """There is a device: of torch's where torch is an XPU build, or a CPU device that takes kernels."""
    if torch_install().xpu is not None:
        import torch

        if torch.xpu.is_available():
            return f"{torch.xpu.device_count()} XPU device(s)"
    runtime = _require_runtime()
    answer = opencl_devices(runtime, memo)
    if answer.failure:
        raise IncompatibleOpError(answer.failure, INSTALL_REMEDY)
    fitting = [device for device in answer.devices if device.kind == "cpu" and device.takes_kernels]
    if fitting:
        return f"{fitting[0].name} ({fitting[0].platform})"
    found = ", ".join(device.name for device in answer.devices) or "none"
    raise IncompatibleOpError(
        f"The SYCL runtime in {runtime.prefix} has no CPU device that accepts kernels; devices: {found}.",
        "Install Intel's OpenCL runtime for CPUs: `pip install intel-opencl-rt`. If OCL_ICD_FILENAMES is set, "
        "unset it or set it to the path of libintelocl.so.",
    )


def kernel_compiler_check(memo: Memo) -> str:
    """The library that compiles kernels in the process exists and can be opened."""
    runtime = _require_runtime()
    if runtime.kernel_compiler is None:
        raise IncompatibleOpError(f"libsycl-jit.so is not in {runtime.library_dir}.", INSTALL_REMEDY)
    failure = opencl_devices(runtime, memo).compiler_failure
    if failure:
        raise IncompatibleOpError(f"{runtime.kernel_compiler} cannot be opened: {failure}.", REINSTALL_REMEDY)
    return str(runtime.kernel_compiler)


def _require_runtime() -> SyclRuntime:
    runtime = find_runtime()
    if runtime is None:
        raise IncompatibleOpError("No SYCL runtime is installed.", INSTALL_REMEDY)
    return runtime
