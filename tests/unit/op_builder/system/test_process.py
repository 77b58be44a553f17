"""Running a tool: its exit code is known, or the reason is given why it cannot be."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable

import pytest

from op_builder.engine.ninja import find_ninja
from op_builder.errors import ToolchainError
from op_builder.system.process import run


@pytest.mark.parametrize("ask", [lambda: run(["false"]), find_ninja])
def test_a_process_that_ignores_its_children_is_refused(ask: Callable[[], object]) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(ToolchainError, match=r"^This process ignores SIGCHLD") as caught:
            ask()
        assert "signal.SIG_DFL" in caught.value.remedy
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert run(["false"]).code == 1


def test_paths_in_the_output_keep_their_bytes() -> None:
    assert run(["printf", "/a\\377b"]).output.encode(errors="surrogateescape") == b"/a\xffb"


@pytest.mark.parametrize("ask", [lambda: run(["true"]), find_ninja])
def test_where_no_process_can_be_started_the_remedy_names_the_limits(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ToolchainError, match="cannot be started now") as caught:
        ask()
    assert "pids.max" in caught.value.remedy


def test_where_no_thread_can_be_started_a_tool_runs_with_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run(["echo", "1"]).output == "1\n"
    with pytest.raises(ToolchainError, match="did not end"):
        run(["sleep", "100"], timeout_s=0.1)
