"""oneAPI's compiler ``icpx``, which compiles kernels ahead of time, and its command lines.

The commands are those of ``torch.utils.cpp_extension`` for its own SYCL extensions: host code by the ordinary C++
compiler behind icpx, device code linked separately, then all objects linked. Never run on hardware by this project:
the tests run them through a stand-in that checks the arguments and compiles the host side.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from op_builder import env
from op_builder.errors import ToolchainError
from op_builder.plan import BuildPlan, Language
from op_builder.system.process import run
from op_builder.system.records import Memo, Schema, are_texts, is_text
from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY, SyclRuntime, find_ahead_runtime, find_runtime

# These lack hardware for double precision; torch leaves them out, too.
_LEFT_OUT = "dg2"

EXACT_FLAGS = ("-fp-model=precise", "-no-ftz")
"""Flags that make icpx compute as written; its default is ``-fp-model=fast`` with denormals flushed."""


@dataclass(frozen=True)
class SyclCompiler:
    """icpx, as it was found on PATH.

    Attributes:
        path: its resolved file.
        version: its line of ``--version``.
        variables: the variables that its wrapper scripts name.
        digest: of the contents of its programs.
    """

    path: str
    version: str
    variables: tuple[str, ...] = ()
    digest: str = ""

    @property
    def identity(self) -> str:
        return " | ".join(filter(None, [self.path, self.version, self.digest]))


def find_sycl_tools(plan: BuildPlan, memo: Memo) -> tuple[SyclRuntime, SyclCompiler | None]:
    """The runtime, and for a plan with SYCL sources the compiler.

    Raises:
        ToolchainError: one of them is missing, or icpx does not answer.
    """
    uses_compiler = any(source.language is Language.SYCL for source in plan.sources)
    compiler = find_icpx(memo) if uses_compiler else None
    runtime = find_ahead_runtime(compiler.path) if compiler is not None else find_runtime()
    if runtime is None:
        raise ToolchainError("No SYCL runtime with its headers is installed.", INSTALL_REMEDY)
    return runtime, compiler


def find_icpx(memo: Memo) -> SyclCompiler:
    """oneAPI's compiler.

    Raises:
        ToolchainError: it is not on PATH, or does not answer ``--version``.
    """
    found = shutil.which("icpx")
    if found is None:
        raise ToolchainError("icpx is not on PATH.", "Install Intel's oneAPI DPC++ compiler and source its setvars.sh.")
    path = os.path.realpath(found)

    def compute() -> tuple[dict[str, Any], list[str]]:
        from op_builder.toolchains.compiler_probe import (
            digest_of_programs,
            predefined_macros,
            version_line,
            wrapper_facts,
        )

        answer = run([found, "--version"])
        if not answer.ok or not answer.output.strip():
            raise ToolchainError(f"{found} does not answer --version.", "Reinstall oneAPI's DPC++ compiler.")
        named, variables = wrapper_facts([found])
        version = version_line(answer.output, predefined_macros((found,)))
        files = [path, *named]
        return {"version": version, "variables": variables, "digest": digest_of_programs(files)}, files

    schema: Schema = {"version": is_text, "variables": are_texts, "digest": is_text}
    fact = memo.get(f"icpx {path}", schema, compute, is_program=True)
    return SyclCompiler(path, fact["version"], tuple(fact["variables"]), fact["digest"])


def target_devices() -> tuple[str, ...]:
    """Intel GPUs to compile for: ``TORCH_XPU_ARCH_LIST``, else those torch was built for, as torch chooses them."""
    if env.TORCH_XPU_ARCH_LIST.is_set():
        requested = env.TORCH_XPU_ARCH_LIST.raw() or ""
        return tuple(name for name in requested.split(",") if name)
    import torch

    listed: Sequence[str] = torch.xpu.get_arch_list() if torch.xpu._is_compiled() else ()
    return tuple(name for name in listed if not name.startswith(_LEFT_OUT))


def compile_flags(devices: Sequence[str], host_compiler: str, host_flags: Sequence[str]) -> list[str]:
    """The flags by which icpx compiles a source, without ``host_flags``, which both its passes get.

    Args:
        devices: Intel GPUs to compile for ahead of time; none leaves that to the driver.
    """
    return [
        "-fsycl",
        target_flag(devices),
        "-sycl-std=2020",
        f"-fsycl-host-compiler={host_compiler}",
        # icpx removes a level of quotes; as torch does it for releases from 2025.2 on.
        "-fsycl-host-compiler-options=" + shlex.join(flag.replace('"', '\\"') for flag in host_flags),
    ]


def target_flag(devices: Sequence[str]) -> str:
    """Which device code is made: for named GPUs ahead of time, and SPIR-V for all others."""
    return f"-fsycl-targets={'spir64_gen,' if devices else ''}spir64"


def device_link(compiler: SyclCompiler, devices: Sequence[str], objects: Sequence[str], output: str) -> list[str]:
    """The command that links the device code of ``objects`` into one more object."""
    named = ["-Xs", f"-device {','.join(devices)}"] if devices else []
    link = ["-fsycl", "-fsycl-link", "--offload-compress", target_flag(devices)]
    return [compiler.path, *objects, "-o", output, *link, *named]
