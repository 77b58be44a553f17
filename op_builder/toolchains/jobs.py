"""How many compilers may run at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from op_builder import env
from op_builder.errors import BuildCancelled
from op_builder.plan import BuildPlan
from op_builder.system.cgroups import HostFiles, available_memory_bytes, cpu_quota_cores

# Peak memory of one compiler job, measured on torch 2.13 with g++ 12: a file with
# torch/extension.h takes 1.6 GB, one on the Stable ABI or TVM FFI 0.2 GB, nvcc's passes about 1 GB.
_BYTES_PER_JOB = 400 << 20
_TORCH_CXX_BYTES_PER_JOB = 1800 << 20
_CUDA_BYTES_PER_JOB = 1500 << 20
_HOST = HostFiles()
_POLL_S = 0.05


def job_count(plan: BuildPlan, files: HostFiles = _HOST) -> int:
    """Compiler jobs for ``plan`` alone: at most those allowed, and at most one per file."""
    return max(1, min(allowed_jobs([job_bytes(plan)], files), len(plan.sources)))


def allowed_jobs(needs_bytes: Iterable[int], files: HostFiles = _HOST) -> int:
    """Compiler jobs that may run at a time: ``ACCEL_MAX_JOBS``, else ``MAX_JOBS``, else as many as this process has
    cores, and the machine has memory for.

    Args:
        needs_bytes: memory of a job of each plan; the largest decides.
    """
    requested = env.ACCEL_MAX_JOBS.get() or env.MAX_JOBS.get()
    if requested is not None:
        return requested
    per_job = max(needs_bytes, default=_BYTES_PER_JOB)
    return max(1, min(available_cores(files), available_memory_bytes(files) // per_job))


def job_bytes(plan: BuildPlan) -> int:
    """Memory to assume for a compiler job of ``plan``: what is typical for its binding."""
    per_job = _TORCH_CXX_BYTES_PER_JOB if plan.binding.uses_torch_cxx else _BYTES_PER_JOB
    return max(per_job, _CUDA_BYTES_PER_JOB) if plan.uses_cuda else per_job


class JobBudget:
    """Compiler jobs that builds of this process share, so that together they never run more than ``total``."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._changed = threading.Condition()

    @contextmanager
    def take(self, wanted: int, cancel: threading.Event) -> Iterator[int]:
        """Wait for at least half of ``wanted`` jobs, take up to ``wanted``, and give them back at the end.

        Raises:
            BuildCancelled: ``cancel`` was set before enough were free.
        """
        wanted = max(1, min(wanted, self._total))
        # With fewer, waiting is better: a build cannot take more later.
        enough = (wanted + 1) // 2
        with self._changed:
            while self._free < enough:
                if cancel.is_set():
                    raise BuildCancelled("The build was cancelled before it began.")
                self._changed.wait(_POLL_S)
            taken = min(wanted, self._free)
            self._free -= taken
        try:
            yield taken
        finally:
            with self._changed:
                self._free += taken
                self._changed.notify_all()


def available_cores(files: HostFiles = _HOST) -> int:
    """Cores that this process may run on, within its control group's share of time; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota_cores(files)
    return cores if quota is None else max(1, min(cores, int(quota + 0.5)))
