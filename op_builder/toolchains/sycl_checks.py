"""Checks of SYCL ops: a working toolchain, a runtime, a device."""

from __future__ import annotations

from collections.abc import Callable

from op_builder.system.memo import Memo
from op_builder.system.outcomes import CheckOutcome, Failed, Passed, guarded
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.sycl import SyclToolchain
from op_builder.toolchains.sycl_devices import opencl_devices
from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY, REINSTALL_REMEDY, find_ahead_runtime, find_runtime

_TOOLCHAIN, _HOST = "SYCL toolchain", "SYCL host code"
_DEVICE, _COMPILER = "SYCL device", "SYCL kernel compiler"

# Quickly read, and the exception's constructor is in libsycl.
_PROBE = """#include <sycl/exception.hpp>
int main() { throw sycl::exception(sycl::errc::invalid, "probe"); }
"""


def toolchain_checks(choose: Callable[[], CheckOutcome], memo: Memo) -> list[CheckOutcome]:
    """Whether an op's kernels and host side can be compiled with the toolchain that ``choose`` returns."""
    chosen = guarded(_TOOLCHAIN, choose)
    outcomes = [_chosen(chosen)]
    if isinstance(chosen, Passed):
        outcomes.append(guarded(_HOST, lambda: host_check(SyclToolchain(chosen.name), memo)))
    return outcomes


def load_checks(choose: Callable[[], CheckOutcome], memo: Memo, *, has_kernel_texts: bool) -> list[CheckOutcome]:
    """Whether an op finds a runtime and a device, and what compiles its kernels, if they are texts."""
    outcomes = [guarded(_DEVICE, lambda: device_check(memo))]
    if has_kernel_texts:
        chosen = guarded(_COMPILER, choose)
        if not (isinstance(chosen, Passed) and SyclToolchain(chosen.name).is_ahead):
            outcomes.append(guarded(_COMPILER, lambda: kernel_compiler_check(memo)))
    return outcomes


def _chosen(chosen: CheckOutcome) -> CheckOutcome:
    if isinstance(chosen, Passed):
        return Passed(_TOOLCHAIN, f"{chosen.name}: {chosen.detail}")
    if chosen.name == _TOOLCHAIN:  # the choice itself failed
        return chosen
    return Failed(_TOOLCHAIN, f"{chosen.name}: {chosen.reason}", chosen.remedy)


def host_check(toolchain: SyclToolchain, memo: Memo) -> CheckOutcome:
    """The compiler of the host side compiles a small program against the SYCL runtime, and links it."""
    # Not at the top: the check of devices, part of a warm load, needs no compiler.
    from op_builder.toolchains.compiler import find_cxx
    from op_builder.toolchains.probes import remembered_failure_of
    from op_builder.toolchains.sycl_ahead import find_icpx

    compiler = find_icpx(memo) if toolchain.is_ahead else None
    runtime = find_ahead_runtime(compiler.path) if compiler is not None else find_runtime()
    if runtime is None:
        return Failed(_HOST, "no SYCL runtime with its headers is installed.", INSTALL_REMEDY)
    if compiler is not None:
        start, identity, program = [compiler.path, "-fsycl"], compiler.identity, compiler.path
    else:
        cxx = find_cxx(memo)
        if cxx.is_zig:
            reason = "ziglang's clang uses libc++, and libsycl's functions take the types of libstdc++."
            return Failed(_HOST, reason, "Install g++ or clang++, or set CXX to one.")
        start, identity, program = list(cxx.command), cxx.identity, cxx.path
    places = ["-isystem", str(runtime.include_dir), f"-L{runtime.library_dir}"]
    command = [*start, "-std=c++17", *places, "probe.cpp", "-lsycl", "-o", "probe"]
    subject, files = f"{identity} {runtime.version} {command}", [program, str(runtime.library)]
    failure = remembered_failure_of(command, {"probe.cpp": _PROBE}, subject, files, memo)
    if failure:
        return Failed(_HOST, f"{start[0]} cannot compile a small SYCL program: {failure}", INSTALL_REMEDY)
    return Passed(_HOST, f"{start[0]} with {runtime.library}")


def device_check(memo: Memo) -> CheckOutcome:
    """There is a device: of torch's where torch is an XPU build, or a CPU device that takes kernels."""
    if torch_install().xpu is not None:
        import torch

        if torch.xpu.is_available():
            return Passed(_DEVICE, f"{torch.xpu.device_count()} XPU device(s)")
    runtime = find_runtime()
    if runtime is None:
        return Failed(_DEVICE, "no SYCL runtime is installed.", INSTALL_REMEDY)
    answer = opencl_devices(runtime, memo)
    if answer.failure:
        return Failed(_DEVICE, answer.failure, INSTALL_REMEDY)
    fitting = [device for device in answer.devices if device.kind == "cpu" and device.takes_kernels]
    if fitting:
        return Passed(_DEVICE, f"{fitting[0].name} ({fitting[0].platform})")
    found = ", ".join(device.name for device in answer.devices) or "none"
    return Failed(
        _DEVICE,
        f"the SYCL runtime in {runtime.prefix} has no CPU device that accepts kernels; devices: {found}.",
        "Install Intel's OpenCL runtime for CPUs: pip install intel-opencl-rt; if OCL_ICD_FILENAMES is set, unset it "
        "or have it name libintelocl.so.",
    )


def kernel_compiler_check(memo: Memo) -> CheckOutcome:
    """The library that compiles kernels in the process exists and can be opened."""
    runtime = find_runtime()
    if runtime is None:
        return Failed(_COMPILER, "no SYCL runtime is installed.", INSTALL_REMEDY)
    if runtime.kernel_compiler is None:
        return Failed(_COMPILER, f"libsycl-jit.so is not in {runtime.library_dir}.", INSTALL_REMEDY)
    failure = opencl_devices(runtime, memo).compiler_failure
    if failure:
        return Failed(_COMPILER, f"{runtime.kernel_compiler} cannot be opened: {failure}.", REINSTALL_REMEDY)
    return Passed(_COMPILER, str(runtime.kernel_compiler))
