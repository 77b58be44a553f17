"""Checks of what the engine needs: ninja, a cache directory it can write, settings it can parse."""

from __future__ import annotations

from op_builder import env
from op_builder.cache.failures import obstacle
from op_builder.cache.store import Cache
from op_builder.engine.ninja import find_ninja
from op_builder.plan import BuildPlan
from op_builder.system.interpreter import python
from op_builder.system.outcomes import CheckOutcome, Failed, Passed
from op_builder.system.process import run
from op_builder.toolchains.jobs import job_count


def python_check() -> CheckOutcome:
    """An interpreter for the child process that tries a new binary."""
    return Passed("Python", python())


def ninja_check() -> CheckOutcome:
    """A ninja that runs."""
    program = find_ninja()
    return Passed("ninja", f"{program} {run([program, '--version']).output.strip()}")


def cache_check(cache: Cache, op: str = "") -> CheckOutcome:
    """The cache directory can be written or created, and binaries there can be opened."""
    found = obstacle(cache.root, op)
    if found is not None:
        return Failed("cache directory", found.message, found.remedy)
    return Passed("cache directory", str(cache.root))


def settings_check(plan: BuildPlan) -> CheckOutcome:
    """The environment variables for builds have valid values."""
    jobs, timeout_s = job_count(plan), env.ACCEL_COMPILE_TIMEOUT_S.get()
    env.ACCEL_CACHE_MAX_MIB.get()
    return Passed("build settings", f"{jobs} compiler jobs at a time, {timeout_s} s at most")
