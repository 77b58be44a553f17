"""Checks: can this op be built, and can it be loaded, here? Each no has a reason and a remedy.

The report and ``load()`` ask the same checks. A yes means that the thing was compiled, linked
or found just as ``load()`` will need it, not that a name was seen on PATH.
"""

from __future__ import annotations

from pathlib import Path

from op_builder.errors import ToolchainError
from op_builder.plan import Binding, BuildPlan
from op_builder.system.memo import Memo
from op_builder.system.outcomes import CheckOutcome, Failed, Passed
from op_builder.system.process import run
from op_builder.system.torch_install import MINIMUM_TORCH, torch_install
from op_builder.toolchains.compiler import find_cxx
from op_builder.toolchains.compiler_probe import binutil
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.cuda_archs import gencode_flags
from op_builder.toolchains.diagnose import diagnose
from op_builder.toolchains.flags import grouped_flags
from op_builder.toolchains.probes import remembered_failure_of

_BINUTILS = "Install binutils (Debian and Ubuntu: apt-get install binutils), or correct PATH."


def torch_check() -> CheckOutcome:
    """torch can be imported and is new enough."""
    install = torch_install()
    needed = ".".join(map(str, MINIMUM_TORCH))
    if install.release < MINIMUM_TORCH:
        return Failed("torch", f"torch {install.version} is older than {needed}.", f"Install torch >= {needed}.")
    return Passed("torch", f"{install.version}")


def cxx_check(plan: BuildPlan, memo: Memo) -> CheckOutcome:
    """The host compiler compiles and links a small program with the plan's own flags, and its ``nm`` runs."""
    compiler = find_cxx(memo)
    # Without its defines, which mean nothing to this program, one answer serves many ops.
    flags = [word for flag, _, words in grouped_flags(plan.cxx_flags) if flag != "-D" for word in words]
    headers = ["new"]  # of the standard library, and quickly read
    if plan.binding is Binding.TORCH:
        import sysconfig

        flags.append(f"-I{sysconfig.get_paths()['include']}")
        headers.insert(0, "Python.h")
    text = "".join(f"#include <{name}>\n" for name in headers) + "int* probe() { return new (std::nothrow) int; }\n"

    def compile_and_link(directory: Path) -> list[str]:
        (directory / "probe.cpp").write_text(text)
        return [*compiler.command, *flags, "-fPIC", "-shared", "probe.cpp", "-o", "probe.so"]

    subject = f"c++ {compiler.identity} {flags} {text}"
    failure = remembered_failure_of(compile_and_link, subject, [compiler.path], memo)
    if failure:
        return Failed(
            "C++ compiler",
            f"{compiler.command[0]} ({compiler.version}) cannot compile a small program: {failure}",
            _cxx_remedy(failure),
        )
    program = binutil("nm", compiler.command)  # lists the symbols of a new binary
    try:
        works = run([program, "--version"]).ok
    except ToolchainError:
        works = False
    if not works:
        return Failed("nm", f"{compiler.command[0]} names {program} as its nm, which does not run.", _BINUTILS)
    return Passed("C++ compiler", f"{compiler.command[0]} ({compiler.version})")


def nvcc_check(plan: BuildPlan, memo: Memo) -> CheckOutcome:
    """nvcc and the host compiler compile a small kernel together, for a requested architecture."""
    toolkit = find_cuda(memo)
    compiler = find_cxx(memo)

    def compile_kernel(directory: Path) -> list[str]:
        (directory / "probe.cu").write_text("#include <cuda_runtime.h>\n__global__ void probe(int* x) { *x = 1; }\n")
        archs = gencode_flags(plan.cuda_archs)
        return [toolkit.nvcc, f"-ccbin={compiler.program}", *archs, "-c", "probe.cu", "-o", "probe.o"]

    subject = f"nvcc {toolkit.identity} {compiler.identity} {plan.cuda_archs}"
    failure = remembered_failure_of(compile_kernel, subject, [toolkit.nvcc, compiler.path], memo)
    if failure:
        return Failed(
            "nvcc",
            f"{toolkit.nvcc} ({toolkit.release}) with {compiler.program} cannot compile a small kernel: {failure}",
            diagnose(failure).remedy or "Run nvcc by hand on a small file to see the full message.",
        )
    return Passed("nvcc", f"{toolkit.nvcc} ({toolkit.release}), toolkit in {toolkit.home}")


def torch_cuda_check() -> CheckOutcome:
    """torch is a CUDA build and sees a device."""
    install = torch_install()
    if install.cuda is None and install.hip is None:
        return Failed(
            "torch with CUDA",
            f"torch {install.version} is a build without CUDA.",
            "Install a CUDA build of torch to run the op; compiling it needs only the toolkit.",
        )
    import torch

    if not torch.cuda.is_available():
        return Failed(
            "CUDA device",
            "torch sees no CUDA device.",
            "Check nvidia-smi and CUDA_VISIBLE_DEVICES; compiling needs no device.",
        )
    return Passed("CUDA device", f"{torch.cuda.device_count()} device(s), torch for CUDA {install.cuda}")


def _cxx_remedy(failure: str) -> str:
    if "fatal error: new:" in failure or "'new' file not found" in failure:
        return "Install the C++ standard library's headers (Debian and Ubuntu: apt-get install g++)."
    return diagnose(failure).remedy or "Install a working g++ or clang++ and set CXX to it."
