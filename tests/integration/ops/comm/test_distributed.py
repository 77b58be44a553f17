"""The backend "accel": real ranks, torch's own functions, and what was really done by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from op_builder.cpu import ShareMemCommBuilder
from tests.support.agreement_programs import MISMATCHES
from tests.support.builds import is_prebuilt
from tests.support.launching import free_port
from tests.support.rank_processes import run_ranks, values

PROGRAM = "distributed_programs"


def ranks(function: str, size: int, directory: Path, program: str = PROGRAM, **options: Any) -> list[Any]:
    return values(run_ranks(program, function, size, directory, **options))


# Collectives ---------------------------------------------------------------------------------------


def without_op(directory: Path) -> list[dict[str, str]]:
    """Environments of two ranks, the second of which cannot load the op."""
    if is_prebuilt(ShareMemCommBuilder()):
        pytest.skip("the op is prebuilt, so that every rank can load it")
    return [{}, {"ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(directory / "empty")}]


def require_all_ours(result: dict[str, Any]) -> None:
    assert result["gloo"] == {}
    assert set(result["ours"]) >= {"allreduce", "allgather", "broadcast", "reduce_scatter", "barrier"}
    # 3 ops x 4 types and avg of the three that have it, at 3 lengths; one not contiguous, one empty, two near a limit.
    assert result["ours"]["allreduce"] == (3 * 4 + 3) * 3 + 4


def test_every_collective_and_method_name_old_and_new_is_right_and_ours(tmp_path: Path) -> None:
    for result in ranks("several", 2, tmp_path, arguments=[["all_collectives", "method_names"]]):
        require_all_ours(result["all_collectives"])
        assert result["all_collectives"]["hosts"] == [[0, 1]]
        assert result["method_names"]["gloo"] == {}
        assert len(result["method_names"]["ours"]) == 14


def test_subsets_meshes_and_several_groups(tmp_path: Path) -> None:
    assert ranks("groups", 4, tmp_path) == [1, 0, 0, 1]


def test_a_group_is_made_again_on_the_store_of_the_one_before(tmp_path: Path) -> None:
    assert ranks("made_again", 2, tmp_path) == [[[2.0, 2.0, 2.0]] * 2] * 2


# Hosts ---------------------------------------------------------------------------------------------


def hosts(names: str) -> list[dict[str, str]]:
    return [{"ACCEL_HOST_ID": name, "GLOO_SOCKET_IFNAME": "lo"} for name in names]


def test_every_collective_across_hosts_through_gloo(tmp_path: Path) -> None:
    for result in ranks("all_collectives", 3, tmp_path, environments=hosts("aba")):
        require_all_ours(result)
        assert result["hosts"] == [[0, 2], [1]]


def test_types_that_gloo_lacks_are_named_before_anything_is_sent(tmp_path: Path) -> None:
    *errors, average = ranks("unsupported_types", 2, tmp_path)[0]
    assert all("OpArgumentError" in error and "does not support torch." in error for error in errors), errors
    assert "avg does not support torch.int64" in average


def test_freed_memory_is_named_before_it_is_read(tmp_path: Path) -> None:
    for errors in ranks("freed_memory", 2, tmp_path):
        assert all("OpArgumentError" in error and "of its storage" in error for error in errors), errors


# When something is missing -------------------------------------------------------------------------


def test_a_killed_rank_is_named_by_all_others_however_they_wait(tmp_path: Path) -> None:
    *survivors, victim = run_ranks(PROGRAM, "a_rank_dies", 4, tmp_path)
    assert victim.status == -9
    for survivor in survivors:
        assert survivor.status == 0, survivor.output
        assert all("rank 3" in error.lower() for error in survivor.value)


@pytest.mark.parametrize("names", ["aa", "ab"], ids=["one host", "two hosts"])
def test_a_changed_timeout_counts(tmp_path: Path, names: str) -> None:
    errors = ranks("another_timeout", 2, tmp_path, environments=hosts(names))[0]
    assert len(errors) == 3
    assert all("CommError" in error or "CommunicationError" in error for error in errors), errors


def test_a_killed_rank_of_a_subset_is_named_by_its_global_rank(tmp_path: Path) -> None:
    results = run_ranks(PROGRAM, "a_rank_of_a_subset_dies", 3, tmp_path)
    assert results[2].status == -9
    assert "That is rank 2 of the default group." in results[1].value
    assert results[1].value.endswith("[2]")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", "rank 1 died"),
        ("mismatch", "all_reduce (sum) of 11 float32"),
        ("interrupted", "Rank 0 of the group gave up: KeyboardInterrupt ended a collective"),
    ],
)
def test_a_failure_inside_one_host_ends_the_others(how: str, message: str, tmp_path: Path) -> None:
    results = run_ranks(PROGRAM, "one_host_fails", 4, tmp_path, arguments=[how], environments=hosts("aabb"))
    first, second, leader, other = results
    if how == "killed":
        assert second.status == -9
    for result in (first, leader, other) if how == "killed" else results:
        assert result.status == 0, result.output
    failing = {"killed": [first, leader], "mismatch": [first, second, leader], "interrupted": [leader]}
    for once, again in (result.value for result in failing[how]):
        assert message in once
        assert once == again
    assert how != "mismatch" or "Create a new group for the ranks." in first.value[0]
    assert how != "interrupted" or first.value[0].startswith("KeyboardInterrupt")
    assert "It is the first rank of its host and gave up between the 2 hosts" in other.value[0]


def test_a_group_is_made_while_another_one_has_collectives_between_hosts_to_do(tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert ranks("makes_a_group_meanwhile", 2, tmp_path, environments=[names | meeting for names in hosts("ab")])


def test_a_host_that_dies_is_an_error_on_all_ranks_of_the_other(tmp_path: Path) -> None:
    results = run_ranks(PROGRAM, "a_rank_dies", 3, tmp_path, environments=hosts("aab"))
    assert results[2].status == -9
    for result in results[:2]:
        assert result.status == 0, result.output
    leader, other = results[0].value, results[1].value
    assert "gloo failed between the 2 hosts of the group" in leader[0]
    assert leader[1] == leader[0]
    assert "It is the first rank of its host and gave up between the 2 hosts" in other[0]


@pytest.mark.parametrize(("names", "destroys"), [("aa", False), ("ab", True)], ids=["inside a host", "between hosts"])
def test_a_process_that_ends_in_the_middle_of_a_collective_ends_well(
    names: str, destroys: bool, tmp_path: Path
) -> None:
    results = run_ranks(PROGRAM, "ends_meanwhile", 2, tmp_path, arguments=[destroys], environments=hosts(names))
    _, message = values(results)
    assert (
        "rank 0 has closed the group" in message.lower()
        or "Rank 0 of the group gave up: The group was destroyed" in message
    )


@pytest.mark.parametrize(
    ("destroys", "is_barrier"), [(False, False), pytest.param(True, False, marks=pytest.mark.slow), (True, True)]
)
def test_a_process_that_ends_while_gloo_works_ends_well(destroys: bool, is_barrier: bool, tmp_path: Path) -> None:
    """A thread of gloo that then had the last reference to a tensor would abort the process.

    Freeing the group while gloo works would wait for the other rank, which waits for this one to end.
    """
    arguments = [destroys, is_barrier]
    ranks("ends_with_gloo_at_work", 2, tmp_path / "ranks", arguments=arguments, environments=without_op(tmp_path))


def test_if_one_rank_cannot_load_the_op_gloo_runs_everything_with_a_warning(tmp_path: Path) -> None:
    results = run_ranks(PROGRAM, "without_the_op", 2, tmp_path / "ranks", environments=without_op(tmp_path))
    for result in results:
        assert result.status == 0, result.output
        assert result.value == {"ours": {}, "gloo": {"allreduce": 1, "barrier": 1}}
        assert "rank 1 cannot use shared memory" in result.output
        assert "Unset ACCEL_JIT" in result.output


# Training ------------------------------------------------------------------------------------------


def test_ddp_fsdp2_and_tensor_parallel_have_gloo_s_losses_and_are_really_ours(tmp_path: Path) -> None:
    by_gloo, ours = (
        ranks("run", 2, tmp_path / name, "parallel_training_programs", arguments=[name], by_gloo=name == "gloo")
        for name in ("gloo", "accel")
    )
    for rank in range(2):
        for name, losses in ours[rank]["losses"].items():
            # With two ranks a sum has one order, so even the last bit is the same.
            assert losses == by_gloo[rank]["losses"][name], name
        counted = ours[rank]["ours"]
        assert counted["ddp"]["allreduce"] >= 6
        assert sum(number for key, number in counted["fsdp2"].items() if "gather" in key) >= 6
        assert sum(number for key, number in counted["fsdp2"].items() if "scatter" in key) >= 6
        assert sum(number for key, number in counted["tensor parallel"].items() if "reduce" in key) >= 6
        # Only what parallelize_module() does once, to distribute the parameters, is left to gloo.
        assert ours[rank]["gloo"] == {"ddp": {}, "fsdp2": {}, "tensor parallel": {"scatter": 6}}


@pytest.mark.slow
def test_functional_collectives_of_a_compiled_graph_are_ours(tmp_path: Path) -> None:
    for result in values(run_ranks("parallel_training_programs", "compiled", 2, tmp_path)):
        assert result["gloo"] == {}
        assert sum(result["ours"].values()) == 4


# Calls that differ, what gloo runs, and thread-local state --------------------------------------------


AGREEMENT = "agreement_programs"


@pytest.mark.parametrize("place", ["one host", "two hosts", "gloo"])
def test_the_group_keeps_its_promises_whoever_runs_the_collective(place: str, tmp_path: Path) -> None:
    environments = without_op(tmp_path) if place == "gloo" else hosts("aa" if place == "one host" else "ab")
    names = ["any_layout", "thread_state"]
    found = ranks("several", 2, tmp_path / "ranks", AGREEMENT, arguments=[names], environments=environments)
    assert found == [dict.fromkeys(names, True)] * 2


def test_a_subclass_over_plain_memory_is_plain(tmp_path: Path) -> None:
    assert ranks("subclasses", 2, tmp_path, AGREEMENT) == [{}, {}]


def test_different_calls_are_an_error_on_both_ranks_that_names_both(tmp_path: Path) -> None:
    raised = ranks("mismatches", 2, tmp_path, AGREEMENT)
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
    found = ranks("mismatches", 2, tmp_path, AGREEMENT, arguments=[name], environments=hosts("ab"))
    for rank, raised in enumerate(found):
        assert f"Rank {rank} called" in raised[name]
        assert f"rank {1 - rank} called" in raised[name]


def test_ddp_with_powersgd_trains_as_with_gloo(tmp_path: Path) -> None:
    by_gloo, ours = (
        ranks("power_sgd", 2, tmp_path / name, AGREEMENT, arguments=[name], by_gloo=name == "gloo")
        for name in ("gloo", "accel")
    )
    for losses, expected in zip(ours, by_gloo, strict=True):
        assert losses == pytest.approx(expected)
