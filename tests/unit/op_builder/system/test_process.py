"""Running a tool: its exit code is known, or the reason is given why it cannot be."""

from __future__ import annotations

import signal

import pytest

from op_builder.errors import ToolchainError
from op_builder.system.process import run


def test_a_process_that_ignores_its_children_is_refused() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(ToolchainError, match="ignores SIGCHLD"):
            run(["false"])
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert run(["false"]).code == 1


def test_paths_in_the_output_keep_their_bytes() -> None:
    assert run(["printf", "/a\\377b"]).output.encode(errors="surrogateescape") == b"/a\xffb"
