"""Compiling an op's SYCL kernels before anybody calls the op.

The SYCL runtime does it, in a child process. A build has it compile one of the op's kernels, so that an error in
their text is an error of the build; ``python -m op_builder.build`` has it compile all. What it makes lies in
the runtime's own cache, inside ours.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from op_builder import env
from op_builder.cache.store import Cache, Entry
from op_builder.engine.jobs import allowed_jobs
from op_builder.engine.try_load import needed_libraries
from op_builder.errors import CompileError
from op_builder.plan import BuildPlan
from op_builder.system.process import run
from op_builder.toolchains.diagnose import diagnose
from op_builder.toolchains.sycl_runtime import runtime_variables
from op_builder.toolchains.toolset import Toolset

PREPARE = "accel_sycl_prepare"

_COMPILED, _REFUSED = 0, 1
_ALL = 1 << 20
_TOLD = "accel-ops: kernels"
_ERROR = re.compile(r"^\S+:\d+:\d+: (?:fatal )?error: .*$", re.MULTILINE)

_CRASH_REMEDY = (
    "Release 2026.2 of the runtime does so for kernels that convert sycl::ext::oneapi::bfloat16 while "
    "SYCL_CACHE_PERSISTENT is 1 (convert its bits), and for a parameter whose class template is not instantiated "
    "before (add 'template struct Name<float>;')."
)

_CHILD = f"""
import ctypes, json, sys
artifact, limit, jobs, *libraries = sys.argv[1:]
for library in libraries:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
error = ctypes.create_string_buffer(1 << 20)
numbers = map(ctypes.c_size_t, (int(limit), int(jobs)))
code = getattr(ctypes.CDLL(artifact), {PREPARE!r})(*numbers, error, ctypes.c_size_t(len(error)))
print({_TOLD!r}, json.dumps([code, error.value.decode(errors="replace")]), flush=True)
"""


def try_kernels(artifact: Path, plan: BuildPlan, toolset: Toolset, cache: Cache, log_path: Path) -> str:
    """Have the SYCL runtime compile one kernel of a binary that was just built, for the devices that are here.

    Args:
        log_path: of the build; what the kernel compiler says is added to it.

    Returns:
        how it went, for the manifest; empty for a binary without kernel texts.

    Raises:
        CompileError: the kernel compiler refused it, or ended its process.
    """
    if not _has_kernels(artifact, toolset):
        return ""
    code, told = _prepare(artifact, plan, toolset, cache, limit=1)
    if code == _COMPILED:
        return "a kernel compiled"
    if code == _REFUSED:
        with log_path.open("a") as log:
            log.write(told)
        raise _refused(plan.op, told, log_path)
    # Without a device: kernels are compiled where there is one.
    return f"no kernel compiled: {told.partition(chr(10))[0]}"


def compile_all_kernels(entry: Entry, plan: BuildPlan, toolset: Toolset, cache: Cache) -> str:
    """Have the SYCL runtime compile every kernel of a published binary, for the devices that are here.

    Returns:
        why not all were compiled, where that is no fault of theirs; empty when they were.

    Raises:
        CompileError: the kernel compiler refused one, or ended its process.
    """
    if not _has_kernels(entry.artifact, toolset):
        return ""
    code, told = _prepare(entry.artifact, plan, toolset, cache, limit=_ALL)
    if code == _REFUSED:
        raise _refused(plan.op, told, entry.directory)
    return "" if code == _COMPILED else f"kernels not compiled: {told.partition(chr(10))[0]}"


def _has_kernels(artifact: Path, toolset: Toolset) -> bool:
    """Whether the runtime is to compile kernels of ``artifact``: what icpx compiled ahead is done."""
    return toolset.sycl is not None and toolset.icpx is None and PREPARE.encode() in artifact.read_bytes()


def _prepare(artifact: Path, plan: BuildPlan, toolset: Toolset, cache: Cache, limit: int) -> tuple[int, str]:
    environment = env.child_environment(**runtime_variables(toolset.sycl, cache.root))
    arguments = [str(artifact), str(limit), str(allowed_jobs([plan])), *needed_libraries(plan, toolset)]
    command = [sys.executable, "-I", "-S", "-c", _CHILD, *arguments]
    child = run(command, timeout_s=env.ACCEL_COMPILE_TIMEOUT_S.get(), environment=environment)
    _, mark, told = child.output.rpartition(_TOLD)
    if mark:
        code, error = json.loads(told)
        return int(code), str(error)
    ended = f"signal {-child.code}" if child.code < 0 else f"status {child.code}"
    last = (child.errors.strip().splitlines() or [""])[-1]
    raise CompileError(
        plan.op,
        f"the SYCL runtime ended the process that compiled kernels, with {ended}. {last}".strip(),
        "SYCL kernel compiler",
        "none",
        _CRASH_REMEDY if child.code < 0 else "",
    )


def _refused(op: str, told: str, place: Path) -> CompileError:
    first = _ERROR.search(told)
    return CompileError(
        op, first[0] if first else told.strip(), "SYCL kernel compiler", str(place), diagnose(told).remedy
    )
