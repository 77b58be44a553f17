"""The number of compilers: cores and memory, as far as this process may use them; variables override."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path

import psutil
import pytest

from op_builder import env
from op_builder.errors import BuildCancelled
from op_builder.plan import Binding, BuildPlan
from op_builder.system.cgroups import HostFiles, available_memory_bytes
from op_builder.toolchains import jobs
from tests.support.kernel_files import write_files
from tests.support.small_ops import SmallBuilder

MEBIBYTE = 1 << 20


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., HostFiles]:
    """A made-up host whose version 2 control group has these files."""

    def make(**texts: str) -> HostFiles:
        limits = {f"sys/fs/cgroup/{name.replace('_', '.')}": text for name, text in texts.items()}
        return write_files(tmp_path, {"proc/self/cgroup": "0::/\n", **limits})

    return make


@pytest.fixture
def plan(small: SmallBuilder) -> BuildPlan:
    """A plan of many sources, so that their number is no limit."""
    found = small.plan()
    return found._replace(sources=found.sources * 64)


def test_memory_of_the_control_group_limits(plan: BuildPlan, host: Callable[..., HostFiles]) -> None:
    files = host(memory_max=str(900 * MEBIBYTE), memory_current=str(100 * MEBIBYTE))
    assert available_memory_bytes(files) == 800 * MEBIBYTE
    assert jobs.job_count(plan, files) <= 2
    assert jobs.job_count(plan._replace(binding=Binding.TORCH), files) == 1


def test_cpu_share_of_the_control_group_limits(plan: BuildPlan, host: Callable[..., HostFiles]) -> None:
    assert jobs.job_count(plan, host(cpu_max="100000 100000")) == 1


def test_without_limits_the_machine_decides(host: Callable[..., HostFiles]) -> None:
    files = host(cpu_max="max 100000", memory_max="max")
    assert jobs.available_cores(files) == len(psutil.Process().cpu_affinity() or [])
    assert 0 < available_memory_bytes(files) <= psutil.virtual_memory().total


def test_no_more_jobs_than_files(small: SmallBuilder) -> None:
    assert jobs.job_count(small.plan()) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"ACCEL_MAX_JOBS": "7", "MAX_JOBS": "3"}, 7), ({"ACCEL_MAX_JOBS": None, "MAX_JOBS": "3"}, 3)],
)
def test_variables_override(plan: BuildPlan, variables: dict[str, str | None], expected: int) -> None:
    with env.scope(**variables):
        assert jobs.job_count(plan) == expected


def test_builds_that_share_a_budget_wait_for_half_of_what_they_want_and_the_last_gets_all() -> None:
    budget, go_on = jobs.JobBudget(8), threading.Event()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as others:
        assert others.enter_context(budget.take(5, go_on)) == 5
        with budget.take(6, go_on) as taken:
            assert taken == 3, "half is worth beginning with"

        def take_all() -> int:
            with budget.take(100, go_on) as taken:
                return taken

        waiting = pool.submit(take_all)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        others.close()
        assert waiting.result(timeout=60) == 8


def test_a_build_that_waits_for_jobs_can_be_stopped() -> None:
    budget, cancel = jobs.JobBudget(1), threading.Event()
    cancel.set()
    with budget.take(1, cancel), pytest.raises(BuildCancelled), budget.take(1, cancel):
        pass
