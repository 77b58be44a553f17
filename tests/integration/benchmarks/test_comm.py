"""The benchmark of all-reduces: the cores of its ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import comm


def test_ranks_are_bound_from_their_start_and_this_process_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[set[int]] = []

    def start(_command: Sequence[str], _variables: dict[str, str]) -> None:
        bound.append(os.sched_getaffinity(0))

    monkeypatch.setattr(comm, "PeerProcess", start)
    before = os.sched_getaffinity(0)
    one = {min(before)}
    comm.Ranks("accel-ops", Path(sys.executable), 3, one)
    assert bound == [one] * 3
    assert os.sched_getaffinity(0) == before
