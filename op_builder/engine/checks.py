"""Checks of everything that compiling an op needs."""

from __future__ import annotations

from collections.abc import Callable

from op_builder import env
from op_builder.cache.failures import cache_error
from op_builder.cache.store import Cache
from op_builder.engine.ninja import find_ninja
from op_builder.plan import SYCL_HOST_RUNTIME, BuildPlan
from op_builder.system.interpreter import python
from op_builder.system.outcomes import CheckOutcome, Failed, checked, guarded
from op_builder.system.process import run
from op_builder.toolchains.checks import cuda_versions_check, cxx_check, nvcc_check, torch_check, torch_cuda_check
from op_builder.toolchains.jobs import job_count
from op_builder.toolchains.sycl import choose, gather_facts, toolchain_checks


def build_checks(
    make_plan: Callable[[], BuildPlan], cache: Cache, op: str, *, has_device_checks: bool = False
) -> list[CheckOutcome]:
    """Checks of the tools and settings that the plan needs, and of the cache.

    Args:
        make_plan: returns the plan, or raises why there is none.
        has_device_checks: whether loading the op looks for the device of its CUDA sources.
    """
    plan = guarded("sources", make_plan)
    has_torch = isinstance(plan, Failed) or plan.binding.uses_torch
    torch = [checked("torch", torch_check)] if has_torch else []
    if isinstance(plan, Failed):
        return [*torch, plan]
    outcomes = [
        *torch,
        checked("Python", python),
        checked("ninja", _ninja),
        checked("C++ compiler", lambda: cxx_check(plan, cache.memo)),
        checked("cache directory", lambda: _writable_cache(cache, op)),
        checked("build settings", lambda: _settings(plan)),
    ]
    if plan.uses_cuda:
        if plan.binding.uses_torch_cxx and not has_device_checks:
            outcomes.append(checked("CUDA device", torch_cuda_check))
        outcomes.append(checked("nvcc", lambda: nvcc_check(plan, cache.memo)))
        if plan.binding.uses_torch_cxx:
            outcomes.append(checked("CUDA versions", lambda: cuda_versions_check(cache.memo)))
    if plan.sycl is not None:
        has_texts = any(source.label == SYCL_HOST_RUNTIME for source in plan.sources)
        outcomes += toolchain_checks(lambda: choose(gather_facts(has_kernel_texts=has_texts)), cache.memo)
    return outcomes


def _ninja() -> str:
    program = find_ninja()
    return f"{program} {run([program, '--version']).output.strip()}"


def _writable_cache(cache: Cache, op: str) -> str:
    """The cache's directory, which can be written or created, and where binaries can be opened."""
    if (error := cache_error(cache.root, op)) is not None:
        raise error
    return str(cache.root)


def _settings(plan: BuildPlan) -> str:
    """The environment variables for builds, which have valid values."""
    env.ACCEL_CACHE_MAX_MIB.get()
    return f"{job_count(plan)} compiler jobs at a time, {env.ACCEL_COMPILE_TIMEOUT_S.get()} s at most"
