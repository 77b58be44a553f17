"""Checks: can this op be built, and can it be loaded, here? Each returns what it found, or raises an AccelError.

The report and ``load()`` ask the same checks. A yes means that the thing was compiled, linked
or found just as ``load()`` will need it, not that a name was seen on PATH.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

from op_builder import env
from op_builder.errors import IncompatibleOpError, ToolchainError
from op_builder.messages import warn_once
from op_builder.plan import BuildPlan
from op_builder.system.records import Memo
from op_builder.system.torch_install import MINIMUM_TORCH, torch_install
from op_builder.toolchains.cuda import CUDA_TORCH_REMEDY, find_cuda, require_same_cuda
from op_builder.toolchains.cuda_archs import gencode_flags
from op_builder.toolchains.diagnose import diagnose
from op_builder.toolchains.flags import grouped_flags
from op_builder.toolchains.packaged import strip_flags
from op_builder.toolchains.probes import PROBE_TIMEOUT_S, remembered_failure_of
from op_builder.toolchains.remedies import WROTE_NOTHING
from op_builder.toolchains.toolset import INSTALL_GXX, find_cxx, is_packaged

logger = logging.getLogger(__name__)

OTHER_LIBRARY = "it uses libc++, and torch's C++ functions take the types of libstdc++"
OTHER_COMPILER = f"Install g++ ({INSTALL_GXX}) or set CXX to it, or declare BINDING = Binding.STABLE."
_TORCH_HEADER = re.compile(
    r'^\s*#\s*include\s*[<"](?:ATen|c10|torch)/(?!csrc/stable/|csrc/inductor/aoti_torch/c/|headeronly/)', re.MULTILINE
)


def torch_check() -> str:
    """torch can be imported and is new enough."""
    install = torch_install()
    needed = ".".join(map(str, MINIMUM_TORCH))
    if install.release < MINIMUM_TORCH:
        raise IncompatibleOpError(
            f"torch {install.version} is older than {needed}.", f"Install a newer one: `pip install 'torch>={needed}'`."
        )
    return install.version


def cxx_check(plan: BuildPlan, memo: Memo) -> str:
    """The host compiler compiles and links a small program with the plan's own flags."""
    needs_libstdcxx = sys.platform == "linux" and _includes_torch(plan)
    compiler = find_cxx(memo, plan.target, needs_libstdcxx=needs_libstdcxx or plan.uses_cuda)
    name = f"{compiler.command[0]} ({compiler.version})"
    other_library = ToolchainError(f"{name} cannot compile the op: {OTHER_LIBRARY}.", OTHER_COMPILER)
    if needs_libstdcxx and compiler.is_zig:
        raise other_library
    if plan.target is None and is_packaged(compiler):
        warn_once(logger, f"No C++ compiler is on PATH: using {compiler.path}. Its first build takes a minute longer.")
    # Without its defines, which mean nothing to this program, one answer serves many ops.
    flags = [word for flag, _, words in grouped_flags(plan.cxx_flags) if flag != "-D" for word in words]
    headers = ["new"]  # of the standard library, and quickly read
    if plan.binding.uses_python:
        import sysconfig

        include = sysconfig.get_paths()["include"]
        if not Path(include, "Python.h").exists():  # compiling it takes longer than the rest
            flags.append(f"-I{include}")
            headers.insert(0, "Python.h")
    text = "".join(f"#include <{name}>\n" for name in headers) + "int* probe() { return new (std::nothrow) int; }\n"
    if needs_libstdcxx:
        text += f"#ifdef _LIBCPP_VERSION\n#error {OTHER_LIBRARY}\n#endif\n"
    stripped = strip_flags(plan.system) if compiler.is_zig else []
    command = [*compiler.command, *flags, "-fPIC", "-shared", *stripped, "probe.cpp", "-o", "probe.so"]
    # The first use of ziglang for a platform compiles its C++ library.
    timeout_s = env.ACCEL_COMPILE_TIMEOUT_S.get() if compiler.is_zig else PROBE_TIMEOUT_S
    subject = f"{compiler.identity} {command}"
    failure = remembered_failure_of(
        *(command, {"probe.cpp": text}, subject, [compiler.path], memo, timeout_s),
        is_for_target=plan.target is not None,
    )
    if OTHER_LIBRARY in failure:
        raise other_library
    if failure:
        raise ToolchainError(f"{name} cannot compile a small program: {failure}.", _cxx_remedy(failure))
    return name


def nvcc_check(plan: BuildPlan, memo: Memo) -> str:
    """nvcc and the host compiler compile a small kernel together, for a requested architecture."""
    toolkit = find_cuda(memo, for_torch=plan.binding.uses_torch)
    compiler = find_cxx(memo)
    if compiler.is_zig:
        reason = f"{compiler.path} compiles with libc++, which CUDA's headers refuse."
        raise ToolchainError(reason, "Install g++ (Debian and Ubuntu: `apt-get install g++`), or set CXX to it.")
    sources = {"probe.cu": "#include <cuda_runtime.h>\n__global__ void probe(int* x) { *x = 1; }\n"}
    archs = gencode_flags(plan.cuda_archs)
    command = [toolkit.nvcc, f"-ccbin={compiler.program}", *archs, "-c", "probe.cu", "-o", "probe.o"]
    subject, files = f"{toolkit.identity} {compiler.identity} {command}", [toolkit.nvcc, compiler.path]
    failure = remembered_failure_of(command, sources, subject, files, memo)
    if failure:
        raise ToolchainError(
            f"{toolkit.nvcc} ({toolkit.release}) with {compiler.program} cannot compile a small kernel: {failure}.",
            diagnose(failure).remedy or "Run nvcc by hand on a small file to see the full message.",
        )
    return f"{toolkit.nvcc} ({toolkit.release}), toolkit in {toolkit.home}"


def cuda_versions_check(memo: Memo) -> str:
    """The toolkit has the CUDA major version that torch was built with."""
    built = torch_install().cuda
    if torch_install().hip is None:
        if built is None:
            return "torch is a build without CUDA; the toolkit is enough to compile"
        require_same_cuda(find_cuda(memo))
    return f"torch for CUDA {built}"


def torch_cuda_check() -> str:
    """torch is a CUDA build and sees a device."""
    install = torch_install()
    if install.cuda is None and install.hip is None:
        raise IncompatibleOpError(
            f"torch {install.version} is a build without CUDA.",
            f"{CUDA_TORCH_REMEDY} Compiling the op needs only the toolkit.",
        )
    import torch

    if not torch.cuda.is_available():
        raise IncompatibleOpError(
            "torch sees no CUDA device.",
            "Run `nvidia-smi` and `echo $CUDA_VISIBLE_DEVICES` to find the reason. Compiling the op needs no device.",
        )
    return f"{torch.cuda.device_count()} device(s), torch for CUDA {install.cuda}"


def _includes_torch(plan: BuildPlan) -> bool:
    """Whether a source names a header with torch's C++ interface."""
    if not plan.binding.uses_torch_cxx:
        return False
    texts = (source.text or source.path.read_text(errors="replace") for source in plan.sources)
    return any(_TORCH_HEADER.search(text) for text in texts)


def _cxx_remedy(failure: str) -> str:
    if "fatal error: new:" in failure or "'new' file not found" in failure:
        return "Install the C++ standard library's headers (Debian and Ubuntu: `apt-get install g++`)."
    if "wrote no" in failure:
        return WROTE_NOTHING
    return diagnose(failure).remedy or "Install a working g++ or clang++ and set CXX to it."
