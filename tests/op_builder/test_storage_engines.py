"""Which engines of async_io work here, and where that is told."""

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
from op_builder.report.collect import environment
from op_builder.report.render import print_report
from op_builder.system import storage_engines


def test_threads_always_work() -> None:
    engines = storage_engines.storage_engines()
    assert tuple(engine.name for engine in engines) == storage_engines.ENGINES
    assert engines[-1] == storage_engines.StorageEngine("threads", None)


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("io_uring", errno.ENOSYS, "too old or built without it, or a sandbox hides it"),
        ("io_uring", errno.EPERM, "io_uring_disabled"),
        ("libaio", errno.EAGAIN, "aio-max-nr"),
        ("io_uring", errno.ENOMEM, "ulimit -l"),
        ("libaio", errno.EIO, "Input/output error (EIO)"),
    ],
)
def test_refusals_are_explained(name: str, number: int, said: str) -> None:
    assert said in storage_engines.explain(name, number)


def test_elsewhere_only_threads_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert [engine.name for engine in storage_engines.storage_engines() if engine.refusal is None] == ["threads"]


def test_a_forced_engine_is_checked_like_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_engines, "_io_uring_errno", lambda: errno.EPERM)
    with env.scope(ACCEL_AIO_ENGINE="io_uring"):
        (outcome,) = AsyncIOBuilder().load_checks()
        assert outcome.name == "storage engine"
        assert "ACCEL_AIO_ENGINE=io_uring: the system refuses it" in outcome.reason
        assert environment()["storage_engines"]["in_use"] is None
    with env.scope(ACCEL_AIO_ENGINE="fast"), pytest.raises(EnvironmentValueError, match="one of io_uring, libaio"):
        storage_engines.forced_engine()
    with env.scope(ACCEL_AIO_ENGINE=None):
        assert AsyncIOBuilder().load_checks() == []


@pytest.mark.parametrize(
    ("forced", "line"),
    [
        (None, "threads\nnot io_uring: the system refuses it: Operation not permitted"),
        ("threads", "threads, forced by ACCEL_AIO_ENGINE"),
        ("io_uring", "none: io_uring is forced and does not work"),
        ("fast", "ACCEL_AIO_ENGINE='fast' is not valid"),
    ],
)
def test_the_report_says_which_engine_and_why_not_others(
    monkeypatch: pytest.MonkeyPatch, forced: str | None, line: str
) -> None:
    monkeypatch.setattr(storage_engines, "_io_uring_errno", lambda: errno.EPERM)
    monkeypatch.setattr(storage_engines, "_native_aio_errno", lambda: errno.ENOSYS)
    with env.scope(ACCEL_AIO_ENGINE=forced):
        data = {
            "ops": [],
            "wheels": [],
            "registered": [],
            "accelerator": {"error": "not asked"},
            "environment": environment(),
        }
    console = Console(file=io.StringIO(), width=200)
    print_report(data, console)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    for part in line.split("\n"):
        assert part in told


def test_the_question_makes_no_engine_stay() -> None:
    code = (
        "import os; from op_builder import storage_engines as e; before = os.listdir('/proc/self/fd');"
        "[e.storage_engines() for _ in range(5)]; assert os.listdir('/proc/self/fd') == before; import sys;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=env.child_environment(PYTHONPATH="."))
