"""Precompile ``torch/extension.h``, for ``accel-ops build --precompile``.

Reading that header is most of the compile of an op that includes it: 5,400 files. GCC can save the result, and
uses it where the header is the first file that a source includes and flags and macros fit; otherwise it reads the
text. A precompiled header is an entry of the cache like a built op, named ``torch_extension``, of 600 to 800 MB; each
set of flags that GCC insists on has its own. A build with it has the same key as one without: the compiler lists all
headers behind it (``-fpch-deps``).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from op_builder import env
from op_builder.cache.depfiles import read_headers
from op_builder.cache.key import BuildKey, Roots, plan_key, saved_since
from op_builder.cache.store import Cache, Entry
from op_builder.engine.commands import (
    PRECOMPILED_DIRECTORY,
    directories_of,
    precompile_command,
    stamped_directories,
    torch_includes,
)
from op_builder.engine.publish import publish
from op_builder.engine.try_load import Inspection
from op_builder.errors import ToolchainError
from op_builder.plan import Binding, BuildPlan, Language, Source
from op_builder.system.process import run
from op_builder.toolchains.diagnose import diagnose
from op_builder.toolchains.flags import DIRECTORY_FLAGS, grouped_flags
from op_builder.toolchains.toolset import Toolset

OP = "torch_extension"
_ARTIFACT = "extension.h.gch"

# GCC compares these with those of the source. It accepts a header of -O2 for any other level but -O0, and of the
# other defines, it compares those that the header has looked up.
_DECISIVE = ("-std=", "-f", "-m", "-g", "-DTORCH_API_")


def header_plan(plan: BuildPlan) -> BuildPlan:
    """The plan of the precompiled header that fits the flags of ``plan``."""
    flags = ("-O2", *(flag for flag in plan.cxx_flags if flag.startswith(_DECISIVE)))
    text = "#include <torch/extension.h>\n"
    source = Source(Path("extension.h"), "extension.h", Language.CXX, text=text)
    return BuildPlan(OP, OP, Binding.TORCH, (source,), (), flags, (), ())


def offer(plan: BuildPlan, toolset: Toolset, cache: Cache, staging: Path) -> bool:
    """Link the precompiled header into a build's PRECOMPILED_DIRECTORY; False if the cache has none for ``plan``."""
    if not plan.binding.uses_torch_cxx or not toolset.cxx.is_gcc or _replaces_headers_of_torch(plan):
        return False
    header = header_plan(plan)
    entry = cache.find(plan_key(header, toolset, cache.memo), OP, Roots.of(header))
    if entry is None:
        return False
    place = staging / PRECOMPILED_DIRECTORY / "torch" / _ARTIFACT
    place.parent.mkdir(parents=True)
    place.symlink_to(entry.artifact)
    return True


def _replaces_headers_of_torch(plan: BuildPlan) -> bool:
    """Whether an include directory of the op has a name, such as ``pybind11``, that would hide one of torch's."""
    named = [Path(value) for flag, value, _ in grouped_flags(plan.cxx_flags) if flag in DIRECTORY_FLAGS]
    own = {name for path in (*plan.include_dirs, *named) if path.is_dir() for name in os.listdir(path)}
    return any(own.intersection(os.listdir(path)) for path in torch_includes(plan))


def precompile(plan: BuildPlan, toolset: Toolset, cache: Cache) -> Entry:
    """The precompiled header for the flags of ``plan``, from the cache or made now.

    Raises:
        ToolchainError: the compiler is not GCC, or failed.
        CacheError: the cache directory cannot be written.
    """
    header = header_plan(plan)
    key = plan_key(header, toolset, cache.memo)
    ready = cache.find(key, OP, Roots.of(header))
    if ready is not None:
        return ready
    if not toolset.cxx.is_gcc:
        raise ToolchainError(f"{toolset.cxx.program} is not GCC; only GCC can use the header.", "Set CXX to a g++.")
    started_ns = time.time_ns()
    with cache.staging(OP) as staging, cache.errors_explained():
        (staging / "extension.h").write_text(header.sources[0].text or "", encoding="utf-8")
        environment = env.compiler_environment(is_for_target=False, TMPDIR=str(staging))
        command = precompile_command(header, toolset, staging, _ARTIFACT)
        done = run(command, cwd=staging, timeout_s=env.ACCEL_COMPILE_TIMEOUT_S.get(), environment=environment)
        if not done.ok:
            diagnosis = diagnose(done.errors)
            raise ToolchainError(f"torch/extension.h cannot be precompiled: {diagnosis.diagnostic}", diagnosis.remedy)
        stamped = stamped_directories(header, toolset)
        searched = [directories_of(command, header.sources[0], toolset)]
        read = read_headers(header, [staging / f"{_ARTIFACT}.d"], stamped, searched)
        built = BuildKey(key, *read)
        if saved_since(started_ns, header, built):
            raise ToolchainError(
                "A header was saved while torch/extension.h was precompiled.", "Run the command again."
            )
        build_s = (time.time_ns() - started_ns) / 1e9
        inspection = Inspection("header", (), "not tried")
        return publish(cache, header, staging / _ARTIFACT, built, inspection, build_s, keep=[])
