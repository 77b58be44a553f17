"""Compiling an op's SYCL kernels before the op is called.

The SYCL runtime does it, in a child process. A build has it compile one of the op's kernels, so that an error in
their text is an error of the build; ``accel-ops build`` has it compile all. The result is stored in the
runtime's own cache, inside ours.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.engine.try_load import needed_libraries
from op_builder.errors import CompileError
from op_builder.plan import BuildPlan
from op_builder.system.interpreter import bare_command
from op_builder.system.process import run
from op_builder.toolchains.diagnose import diagnose
from op_builder.toolchains.jobs import allowed_jobs, job_bytes
from op_builder.toolchains.sycl_runtime import runtime_variables
from op_builder.toolchains.toolset import Toolset

PREPARE = "accel_sycl_prepare"

_COMPILED, _REFUSED = 0, 1
_ALL = 1 << 20
_MARK = "accel-ops: kernels"
_COMPILER = "SYCL kernel compiler"
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
print({_MARK!r}, json.dumps([code, error.value.decode(errors="replace")]), flush=True)
"""


def compile_kernels(
    artifact: Path,
    plan: BuildPlan,
    toolset: Toolset,
    cache: Cache,
    *,
    limit: int = _ALL,
    log_path: Path | None = None,
) -> str | None:
    """Have the SYCL runtime compile kernels of a binary for the devices of this machine.

    Args:
        limit: how many of the binary's kernels to compile.
        log_path: a log to which the compiler's messages are added.

    Returns:
        None for a binary without kernel texts; empty if kernels were compiled; else why there is no device for them.

    Raises:
        CompileError: the kernel compiler rejected one, or crashed.
    """
    # The runtime compiles texts in the binary; icpx has compiled its kernels already.
    if toolset.sycl is None or toolset.icpx is not None or PREPARE.encode() not in artifact.read_bytes():
        return None
    environment = env.child_environment(**runtime_variables(toolset.sycl, cache.kernel_directory()))
    arguments = [str(artifact), str(limit), str(allowed_jobs([job_bytes(plan)])), *needed_libraries(plan, toolset)]
    child = run(bare_command(_CHILD, *arguments), timeout_s=env.ACCEL_COMPILE_TIMEOUT_S.get(), environment=environment)
    _, mark, answer = child.output.rpartition(_MARK)
    if not mark:
        ended = f"signal {-child.code}" if child.code < 0 else f"status {child.code}"
        last = (child.errors.strip().splitlines() or [""])[-1]
        cause = f"the SYCL runtime ended the process that compiled kernels, with {ended}. {last}".strip()
        raise CompileError(plan.op, cause, _COMPILER, "none", _CRASH_REMEDY if child.code < 0 else "")
    code, message = json.loads(answer)
    if code == _REFUSED:
        if log_path is not None:
            with log_path.open("a", encoding="utf-8", errors="replace") as log:
                log.write(message)
        first = _ERROR.search(message)
        cause = first[0] if first else message.strip()
        raise CompileError(plan.op, cause, _COMPILER, str(log_path or artifact.parent), diagnose(message).remedy)
    return "" if code == _COMPILED else str(message).partition("\n")[0]
