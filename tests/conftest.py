"""Settings for the whole suite."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from op_builder import env

# On a busy machine, examples may take long. The same ones in each run: a failure is the fault of a change.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture
def on_the_cpu() -> Iterator[None]:
    """The accelerator is the CPU."""
    with env.scope(ACCEL_ACCELERATOR="cpu", DS_ACCELERATOR=None):
        yield


def pytest_configure(config: pytest.Config) -> None:
    # A new cache directory for each run: ops are compiled by this run's code, and no user's cache is touched.
    # Workers of pytest-xdist inherit the variable.
    if "ACCEL_TEST_CACHE" not in os.environ:
        directory = tempfile.TemporaryDirectory(prefix="accel-ops-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(directory.cleanup)
        os.environ["ACCEL_TEST_CACHE"] = directory.name
    os.environ["ACCEL_CACHE_DIR"] = os.environ["ACCEL_TEST_CACHE"]
    # Threads of OpenMP that wait for work sleep: those of two workers and their ranks would take each other's cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # In a shell's background, programs that tests start would ignore it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)  # files and directories that a group may write are not trusted
    for name in ("ACCEL_ACCELERATOR", "DS_ACCELERATOR", "ACCEL_JIT", "ACCEL_CPU_ISA", "ACCEL_MAX_JOBS", "MAX_JOBS"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Slow tests come last, so that a limit of time skips as few as possible; of them first those without substitutes.
    items.sort(key=lambda item: (_is_slow(item), item.get_closest_marker("first") is None))


def pytest_runtest_setup(item: pytest.Item) -> None:
    until_s = float(os.environ.get("SLOW_TESTS_UNTIL", "inf"))
    if _is_slow(item) and time.time() > until_s:
        pytest.skip("the time for slow tests is over (SLOW_TESTS_UNTIL, seconds since 1970)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    # One line for each reason: -rs prints one for each test.
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    is_quick = "not slow" in config.getoption("markexpr")
    if reasons or is_quick:
        terminalreporter.section("not run")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason}")
    if is_quick:
        terminalreporter.line("      the slow tests: make test SLOW=1")


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None
