"""Which engines of async_io work here, and where that is reported."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from op_builder import env
from op_builder.cpu import AsyncIOBuilder
from op_builder.errors import EnvironmentValueError
from op_builder.ops.io.async_io import AsyncIOModule
from op_builder.report.machine import environment
from op_builder.report.render import print_report
from op_builder.system import storage_engines
from op_builder.system.outcomes import rejection_of
from tests.support.foreign_package import output_of


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [
        ("io_uring", errno.ENOSYS, "too old or built without it, or a sandbox hides it"),
        ("io_uring", errno.EPERM, "io_uring_disabled"),
        ("io_uring", errno.ENOMEM, "ulimit -l"),
        ("libaio", errno.EAGAIN, "aio-max-nr"),
        ("libaio", errno.EIO, "EIO"),
    ],
)
def test_the_reasons_of_the_system_are_explained(name: str, number: int, reason: str) -> None:
    assert reason in storage_engines.explain(name, number)


@pytest.mark.parametrize(
    ("forced", "in_use", "shown"),
    [
        (None, "threads", "in_use threads, forced none, rejected io_uring forbidden"),
        ("threads", "threads", "in_use threads, forced threads"),
        ("io_uring", None, "in_use none, forced io_uring"),
    ],
)
def test_the_report_shows_what_the_op_finds(
    monkeypatch: pytest.MonkeyPatch, forced: str | None, in_use: str | None, shown: str
) -> None:
    AsyncIOBuilder().load()
    rejected = {"io_uring": "forbidden", "libaio": "forbidden"}
    monkeypatch.setattr(AsyncIOModule, "rejected_engines", lambda _: rejected)
    with env.scope(ACCEL_AIO_ENGINE=forced):
        facts = environment()
    assert facts["storage_engines"]["in_use"] == in_use
    assert shown in rendered(facts)


def test_the_report_builds_no_op_to_check_engines(tmp_path: Path) -> None:
    code = "from op_builder.report.machine import environment; print(environment()['storage_engines'])"
    assert "Not checked: async_io is not built." in output_of("-c", code, ACCEL_CACHE_DIR=str(tmp_path))


def rendered(facts: dict[str, Any]) -> str:
    data = {"ops": [], "wheels": [], "registered": [], "accelerator": {"error": "unknown"}, "environment": facts}
    output = io.StringIO()
    print_report(data, Console(file=output, width=200))
    return output.getvalue()


def test_an_unknown_engine_is_an_error() -> None:
    with env.scope(ACCEL_AIO_ENGINE="fast"):
        with pytest.raises(EnvironmentValueError, match="io_uring, libaio"):
            env.ACCEL_AIO_ENGINE.get()
        assert "ACCEL_AIO_ENGINE='fast' is not valid" in str(environment()["storage_engines"])
        assert "ACCEL_AIO_ENGINE" in str(rejection_of(AsyncIOBuilder().load_checks()))
