"""The example: several ranks generate the same text as one, and it reports who reduced."""

from __future__ import annotations

import pytest

from examples.parallel_generation import __main__ as example

SMALL = ["--steps", "3", "--batch", "2", "--length", "6", "--width", "16", "--layers", "1"]


def test_two_ranks_write_the_same_text_and_shared_memory_did_the_reductions(capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(SMALL) == 0
    output = capsys.readouterr().out
    # Two for each block and place, of the first call's and of the measured one's 2 and 6 characters after 16.
    assert f"{2 * (17 + 21)} all-reduces in shared memory, 0 by gloo; the same text" in output
    assert "2 ranks, gloo" in output
    assert "What the model writes:" in output
