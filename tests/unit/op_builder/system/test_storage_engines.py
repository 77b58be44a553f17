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
from op_builder.report.collect import environment
from op_builder.report.render import print_report
from op_builder.system import storage_engines


def test_threads_always_work(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = storage_engines.storage_engines()
    assert tuple(engine.name for engine in engines) == storage_engines.ENGINES
    assert engines[-1] == storage_engines.StorageEngine("threads", None)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert [engine.name for engine in storage_engines.storage_engines() if engine.refusal is None] == ["threads"]


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("io_uring", errno.ENOSYS, "too old or built without it, or a sandbox hides it"),
        ("io_uring", errno.EPERM, "io_uring_disabled"),
        ("libaio", errno.EAGAIN, "aio-max-nr"),
        ("io_uring", errno.ENOMEM, "ulimit -l"),
        ("libaio", errno.EIO, "Input/output error (EIO)"),
    ],
)
def test_refusals_are_explained(name: str, number: int, words: str) -> None:
    assert words in storage_engines.explain(name, number)


def refusal(name: str) -> str | None:
    return None if name == "threads" else "the system refuses it: Operation not permitted"


def test_a_forced_engine_is_checked_like_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_engines, "refusal", refusal)
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
    ("forced", "lines"),
    [
        (None, ["threads", "not io_uring: the system refuses it: Operation not permitted"]),
        ("threads", ["threads, forced by ACCEL_AIO_ENGINE"]),
        ("io_uring", ["none: io_uring is forced and does not work"]),
        ("fast", ["ACCEL_AIO_ENGINE='fast' is not valid"]),
    ],
)
def test_the_report_says_which_engine_and_why_not_others(
    monkeypatch: pytest.MonkeyPatch, forced: str | None, lines: list[str]
) -> None:
    monkeypatch.setattr(storage_engines, "refusal", refusal)
    data: dict[str, object] = {"ops": [], "wheels": [], "registered": [], "accelerator": {"error": "not asked"}}
    with env.scope(ACCEL_AIO_ENGINE=forced):
        data["environment"] = environment()
    output = io.StringIO()
    print_report(data, Console(file=output, width=200))
    assert all(line in output.getvalue() for line in lines)


def test_asking_leaves_no_file_open_and_imports_no_torch() -> None:
    code = (
        "import os; from op_builder.system import storage_engines as e; before = os.listdir('/proc/self/fd');"
        "[e.storage_engines() for _ in range(5)]; assert os.listdir('/proc/self/fd') == before; import sys;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=env.child_environment(PYTHONPATH="."))
