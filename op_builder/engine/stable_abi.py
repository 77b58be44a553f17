"""The C functions of torch's Stable ABI: they serve to check binaries for other platforms, which cannot be opened."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from op_builder import env
from op_builder.errors import LoadError, ToolchainError
from op_builder.plan import BuildPlan
from op_builder.system.process import run
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.toolset import Compiler

_HEADERS = (
    "torch/csrc/stable/c/shim.h",
    "torch/csrc/inductor/aoti_torch/c/shim.h",
    "torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h",
)
_FUNCTION = re.compile(r"\b((?:aoti_)?torch_\w+)\s*\(")
# Undefined symbols that torch does not provide: those that the linker found in other libraries, with a version or the
# library's name, and Python's, which the process has.
NON_TORCH_SYMBOL = re.compile(r"@|^_?Py|^(?:_ITM_\w+|__gmon_start__|__cxa_finalize)$")


def check_target_functions(artifact: Path, plan: BuildPlan, kind: str, undefined: set[str], compiler: Compiler) -> None:
    """Check a binary for the target of ``plan``, as far as its undefined symbols show whether it loads there.

    Raises:
        LoadError: a symbol is neither in the Stable ABI of the torch that the plan is for nor in a library, or the
            binary registers its ops without the loader.
    """
    if kind != "accel":
        raise LoadError(
            f"{artifact.name} registers its ops when it is opened, and cannot be opened here to find out which.",
            "Define them with ACCEL_OP_LIBRARY of torch_c/library.h or bindings/stable_library.h.",
        )
    known = _stable_functions(compiler.command, plan.cxx_flags)
    unknown = sorted(name for name in undefined if name not in known and not NON_TORCH_SYMBOL.search(name))
    if unknown:
        flag = next((flag for flag in plan.cxx_flags if "TORCH_TARGET_VERSION" in flag), "no TORCH_TARGET_VERSION")
        raise LoadError(
            f"{artifact.name} needs functions that neither a library of the system has nor torch's Stable ABI "
            f"(with {flag}): {', '.join(unknown[:8])}.",
            "Add the source that defines them, or call other functions.",
        )


@cache
def _stable_functions(command: tuple[str, ...], flags: tuple[str, ...]) -> frozenset[str]:
    """The functions that the installed torch's headers declare under ``flags``, which name a release of torch."""
    include = torch_install().include_dir
    with tempfile.TemporaryDirectory(prefix="accel-ops-") as directory:
        source = Path(directory, "functions.cpp")
        source.write_text("".join(f"#include <{name}>\n" for name in _HEADERS if (include / name).exists()))
        environment = env.compiler_environment(is_for_target=True)
        done = run([*command, *flags, "-E", "-isystem", str(include), str(source)], environment=environment)
    if not done.ok:
        raise ToolchainError(
            f"The headers of torch cannot be read: {done.errors.strip()[-500:]}",
            "Reinstall torch: `pip install --force-reinstall torch`.",
        )
    return frozenset(_FUNCTION.findall(done.output))
