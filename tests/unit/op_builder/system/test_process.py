"""Running a tool: its exit code is known, or the reason is given why it cannot be."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
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


def test_where_no_process_can_be_started_the_remedy_names_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ToolchainError, match="cannot be started now") as caught:
        run(["true"])
    assert "pids.max" in caught.value.remedy
