"""Ranks that share memory, as processes: shm_cases.py has what they do."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.rank_processes import run_ranks


@dataclass(frozen=True)
class RankEnd:
    """How a rank's part of a case ended.

    Attributes:
        value: what it returned, None where it did not.
        error: the name of the exception's class, and its text; empty where there was none.
        facts: further facts in the exception.
        signal: that it was killed by; 0 where it was not.
    """

    value: Any
    error: str
    facts: dict[str, Any]
    signal: int


def run_case(case: str, size: int, **arguments: Any) -> list[RankEnd]:
    """Run a case of shm_cases.py in as many processes as there are ranks; each one's end."""
    killed = {"value": None, "error": "", "facts": {}}
    with tempfile.TemporaryDirectory() as directory:
        results = run_ranks("shm_cases", "run", size, Path(directory), arguments=[case, arguments])
    assert all(result.status <= 0 for result in results), results
    return [RankEnd(**(result.value or killed), signal=-result.status) for result in results]


def values_of_case(case: str, size: int, **arguments: Any) -> list[Any]:
    """What each rank returned; none may have failed."""
    ends = run_case(case, size, **arguments)
    assert [end.error for end in ends] == [""] * size, ends
    assert [end.signal for end in ends] == [0] * size, ends
    return [end.value for end in ends]
