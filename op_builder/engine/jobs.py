"""How many compilers may run at a time."""

from __future__ import annotations

import os

from op_builder import env
from op_builder.cgroups import HostFiles, available_memory_bytes, cpu_quota_cores
from op_builder.plan import Binding, BuildPlan

# Peak memory of one compiler job, measured on torch 2.13 with g++ 12: a file with
# torch/extension.h takes 1.6 GB, one on the Stable ABI 0.2 GB, nvcc's passes about 1 GB.
_BYTES_PER_JOB = {Binding.STABLE: 400 << 20, Binding.TORCH: 1800 << 20}
_CUDA_BYTES_PER_JOB = 1500 << 20
_HOST = HostFiles()


def job_count(plan: BuildPlan, files: HostFiles = _HOST) -> int:
    """Compiler jobs for ``plan``: ``ACCEL_MAX_JOBS``, else ``MAX_JOBS``, else as many as this
    process has cores and the machine has memory for, and no more than there are files."""
    asked = env.ACCEL_MAX_JOBS.get() or env.MAX_JOBS.get()
    if asked is not None:
        return asked
    per_job = _BYTES_PER_JOB[plan.binding]
    if plan.uses_cuda:
        per_job = max(per_job, _CUDA_BYTES_PER_JOB)
    return max(1, min(available_cores(files), available_memory_bytes(files) // per_job, len(plan.sources)))


def available_cores(files: HostFiles = _HOST) -> int:
    """Cores that this process may run on, within its control group's share of time; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota_cores(files)
    return cores if quota is None else max(1, min(cores, int(quota + 0.5)))
