"""Which engines of async_io work here, and where that is reported."""

from __future__ import annotations

import errno
import io
import subprocess
import sys

import pytest
from rich.console import Console

from op_builder import env
from op_builder.cpu import AsyncIOBuilder
from op_builder.errors import EnvironmentValueError
from op_builder.report.machine import environment
from op_builder.report.render import print_report
from op_builder.system import storage_engines


def test_threads_always_work(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = storage_engines.storage_engines()
    assert tuple(engine.name for engine in engines) == storage_engines.ENGINES
    assert engines[-1] == storage_engines.StorageEngine("threads", None)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert [engine.name for engine in storage_engines.storage_engines() if engine.refusal is None] == ["threads"]


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [
        ("io_uring", errno.EPERM, "io_uring_disabled"),
        ("libaio", errno.EAGAIN, "aio-max-nr"),
        ("libaio", errno.EIO, "EIO"),
    ],
)
def test_refusals_are_explained(name: str, number: int, reason: str) -> None:
    assert reason in storage_engines.explain(name, number)


@pytest.mark.parametrize(
    ("forced", "in_use", "lines"),
    [
        (None, "threads", ["threads", "not io_uring: forbidden"]),
        ("threads", "threads", ["threads, set by ACCEL_AIO_ENGINE"]),
        ("io_uring", None, ["none: ACCEL_AIO_ENGINE=io_uring does not work"]),
    ],
)
def test_report_and_checks_agree(
    monkeypatch: pytest.MonkeyPatch, forced: str | None, in_use: str | None, lines: list[str]
) -> None:
    monkeypatch.setattr(storage_engines, "refusal", lambda name: None if name == "threads" else "forbidden")
    with env.scope(ACCEL_AIO_ENGINE=forced):
        facts = environment()
        reasons = [outcome.reason for outcome in AsyncIOBuilder().load_checks() if hasattr(outcome, "reason")]
    assert facts["storage_engines"]["in_use"] == in_use
    assert reasons == ([] if in_use else ["ACCEL_AIO_ENGINE=io_uring: forbidden."])
    data = {"ops": [], "wheels": [], "registered": [], "accelerator": {"error": "unknown"}, "environment": facts}
    output = io.StringIO()
    print_report(data, Console(file=output, width=200))
    for line in lines:
        assert line in output.getvalue()


def test_an_unknown_engine_is_an_error() -> None:
    with env.scope(ACCEL_AIO_ENGINE="fast"):
        with pytest.raises(EnvironmentValueError, match="one of io_uring, libaio"):
            storage_engines.forced_engine()
        assert "ACCEL_AIO_ENGINE='fast' is not valid" in str(environment()["storage_engines"])


def test_probing_leaves_no_descriptor_and_needs_no_torch() -> None:
    code = (
        "import os; from op_builder.system import storage_engines as e; before = os.listdir('/proc/self/fd');"
        "[e.storage_engines() for _ in range(5)]; assert os.listdir('/proc/self/fd') == before; import sys;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=env.child_environment(PYTHONPATH="."))
