"""The backend "accel": calls that differ between ranks, what gloo runs, and thread-local state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.agreement_programs import MISMATCHES
from tests.support.rank_processes import run_ranks, values

PROGRAM = "agreement_programs"


@pytest.fixture(params=["one host", "two hosts", "gloo"])
def environments(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, str]]:
    """Of two ranks on one host, on two, and where one rank cannot load the op, so that gloo runs everything."""
    if request.param == "one host":
        return [{}, {}]
    if request.param == "two hosts":
        return [{"ACCEL_HOST_ID": name, "GLOO_SOCKET_IFNAME": "lo"} for name in "ab"]
    return [{}, {"ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(tmp_path / "empty")}]


def run(function: str, directory: Path, environments: list[dict[str, str]] | None = None, **options: Any) -> list[Any]:
    return values(run_ranks(PROGRAM, function, 2, directory / "ranks", environments=environments or [], **options))


def test_the_group_keeps_its_promises_whoever_runs_the_collective(
    environments: list[dict[str, str]], tmp_path: Path
) -> None:
    names = ["any_layout", "thread_state"]
    assert run("several", tmp_path, environments, arguments=[names]) == [dict.fromkeys(names, True)] * 2


def test_a_subclass_over_plain_memory_is_plain(tmp_path: Path) -> None:
    assert run("subclasses", tmp_path) == [{}, {}]


def test_different_calls_are_an_error_on_both_ranks_that_names_both(tmp_path: Path) -> None:
    raised = run("mismatches", tmp_path)
    for name in MISMATCHES:
        for own, other in ((0, 1), (1, 0)):
            assert f"rank {own} called" in raised[own][name], name
            assert f"rank {other} called" in raised[own][name], name
            group = "ranks 0, 1" if name == "new group" else "default"
            assert f"of <shared-memory group {group!r}, rank {own} of 2> failed" in raised[own][name], name
            assert "agree of" not in raised[own][name], name
    assert "all_reduce (sum) of 0 float32" in raised[1]["empty"]
    assert "all_reduce (sum) of 3 float64 by gloo" in raised[0]["type"]
    assert "all_reduce (product) of 3 float32 by gloo" in raised[0]["operation"]
    assert "12 bytes of Int" in raised[0]["type of moved"]


@pytest.mark.parametrize("name", ["empty", "root"])
def test_different_calls_on_two_hosts_are_an_error_that_names_both(name: str, tmp_path: Path) -> None:
    hosts = [{"ACCEL_HOST_ID": name, "GLOO_SOCKET_IFNAME": "lo"} for name in "ab"]
    for rank, raised in enumerate(run("mismatches", tmp_path, hosts, arguments=[name])):
        assert f"Rank {rank} called" in raised[name]
        assert f"rank {1 - rank} called" in raised[name]


def test_ddp_with_powersgd_trains_as_with_gloo(tmp_path: Path) -> None:
    by_gloo = run("power_sgd", tmp_path / "gloo", arguments=["gloo"])
    for losses, expected in zip(run("power_sgd", tmp_path / "accel", arguments=["accel"]), by_gloo, strict=True):
        assert losses == pytest.approx(expected)
