"""Settings for the whole suite."""

from __future__ import annotations

import os
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # One cache directory for the run, new each time: ops are compiled by this run's code, and
    # nobody's own cache is touched. Workers of pytest-xdist inherit the variable.
    if "ACCEL_TEST_CACHE" not in os.environ:
        directory = tempfile.TemporaryDirectory(prefix="accel-ops-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(directory.cleanup)
        os.environ["ACCEL_TEST_CACHE"] = directory.name
    os.environ["ACCEL_CACHE_DIR"] = os.environ["ACCEL_TEST_CACHE"]
    for name in ("ACCEL_ACCELERATOR", "DS_ACCELERATOR", "ACCEL_JIT", "ACCEL_CPU_ISA", "ACCEL_MAX_JOBS", "MAX_JOBS"):
        os.environ.pop(name, None)
    # A test that wants the background process asks for it.
    os.environ["ACCEL_PRECOMPILE"] = "0"
