"""The backend "accel": real ranks, torch's own functions, and what was really done by whom."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from rank_processes import run_ranks, values

from op_builder.cache.store import Entry
from op_builder.cpu import CCLCommBuilder, ShareMemCommBuilder
from op_builder.errors import CommunicationError, EnvironmentValueError, OpArgumentError
from op_builder.load.prebuilt import find_prebuilt
from op_builder.ops import distributed
from op_builder.ops.comm.across import ACROSS, require_across, store_for_threads
from op_builder.ops.comm.collectives import HierarchicalCollectives
from op_builder.ops.comm.hosts import Layout, MadeGroups, RankFacts, exchange, host_identity, layout
from op_builder.ops.comm.work import QueuedWork, WorkQueue
from op_builder.toolchains.oneccl import find_oneccl

PROGRAM = Path(__file__).with_name("distributed_programs.py")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """The ops are compiled once, by nobody who is waited for."""
    ShareMemCommBuilder().load()
    if has_oneccl():
        CCLCommBuilder().load()


def ranks(function: str, size: int, directory: Path, **options: Any) -> list[Any]:
    return values(run_ranks(PROGRAM, function, size, directory, **options))


def has_oneccl() -> bool:
    found = find_oneccl()
    return found is not None and bool(found.version)


# Collectives ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told_by_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks return that run several functions, one after another."""
    names = ["all_collectives", "what_gloo_does", "method_names", "asynchronous"]
    return ranks("several", 2, tmp_path_factory.mktemp("two"), arguments=[names])


def require_all_ours(told: dict[str, Any]) -> None:
    assert told["gloo"] == {}
    assert set(told["ours"]) >= {"allreduce", "allgather", "broadcast", "reduce_scatter", "barrier"}
    # 3 ops x 4 types and avg of the three that have it, at 3 lengths; one not contiguous, one empty, two near a limit.
    assert told["ours"]["allreduce"] == (3 * 4 + 3) * 3 + 4


def test_every_collective_gives_what_it_is_to_give_and_none_went_to_gloo(told_by_two: list[dict[str, Any]]) -> None:
    for told in told_by_two:
        require_all_ours(told["all_collectives"])
        assert told["all_collectives"]["hosts"] == [[0, 1]]


def test_what_is_not_covered_is_right_and_counted_for_gloo(told_by_two: list[dict[str, Any]]) -> None:
    for told in told_by_two:
        assert told["what_gloo_does"]["ours"] == {}
        assert told["what_gloo_does"]["gloo"]["allreduce"] == 2
        assert set(told["what_gloo_does"]["gloo"]) >= {"gather", "scatter", "reduce"}


def test_every_method_name_old_and_new_is_ours(told_by_two: list[dict[str, Any]]) -> None:
    for told in told_by_two:
        assert told["method_names"]["gloo"] == {}
        assert len(told["method_names"]["ours"]) == 14


def test_asynchronous_collectives_are_done_in_order_and_wait_for_nobody(told_by_two: list[dict[str, Any]]) -> None:
    assert all(told["asynchronous"] for told in told_by_two)


def test_subsets_meshes_and_groups_that_are_made_again(tmp_path: Path) -> None:
    assert ranks("groups", 4, tmp_path) == [[1, 1], [], [], [1, 1]]


@pytest.mark.parametrize("names", ["aa", pytest.param("ab", marks=pytest.mark.slow)])
def test_a_group_is_made_again_on_the_store_of_the_one_before(names: str, tmp_path: Path) -> None:
    assert ranks("made_again", 2, tmp_path, environments=hosts(names)) == [[[2.0, 2.0, 2.0]] * 2] * 2


# Hosts ---------------------------------------------------------------------------------------------


def hosts(names: str) -> list[dict[str, str]]:
    return [{"ACCEL_HOST_ID": name, "GLOO_SOCKET_IFNAME": "lo"} for name in names]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("aba", [[0, 2], [1]]),
        pytest.param("aabb", [[0, 1], [2, 3]], marks=pytest.mark.slow),
        pytest.param("abcab", [[0, 3], [1, 4], [2]], marks=pytest.mark.slow),
    ],
)
def test_every_collective_across_hosts_through_gloo(names: str, found: list[list[int]], tmp_path: Path) -> None:
    for told in ranks("all_collectives", len(names), tmp_path, environments=hosts(names)):
        require_all_ours(told)
        assert told["hosts"] == found


def test_two_ways_between_hosts_are_an_error_that_says_so(tmp_path: Path) -> None:
    environments = hosts("ab")
    environments[1]["ACCEL_DISTRIBUTED_ACROSS"] = "ccl"
    results = run_ranks(PROGRAM, "layout_of_hosts", 2, tmp_path, environments=environments)
    for result in results:
        assert result.status != 0
        assert "Set ACCEL_DISTRIBUTED_ACROSS alike" in result.told


def test_an_unknown_way_between_hosts_is_refused() -> None:
    with pytest.raises(EnvironmentValueError, match="gloo or ccl"):
        require_across("pigeons")


def test_processes_of_one_machine_have_one_identity_and_a_name_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_HOST_ID", raising=False)
    assert host_identity() == host_identity() != ""
    monkeypatch.setenv("ACCEL_HOST_ID", "shelf 7")
    assert host_identity() == "shelf 7"


def test_the_layout_says_who_leads_and_who_is_where() -> None:
    facts = [RankFacts(host, "", "gloo") for host in "abbac"]
    found = layout(3, facts)
    assert found == Layout(3, ((0, 3), (1, 2), (4,)))
    assert (found.size, found.host, found.local_ranks, found.local_rank) == (5, 0, (0, 3), 1)
    assert not found.is_leader
    assert layout(1, facts).is_leader
    assert [found.host_of(rank) for rank in range(5)] == [0, 1, 1, 0, 2]
    assert not found.are_in_order
    assert layout(0, facts[1:3]).are_in_order


def test_a_rank_that_does_not_come_is_named() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(CommunicationError, match="Rank 1 of the group did not come"):
        exchange(MadeGroups(store, 0), 2, RankFacts("a", "", "gloo"))


# When something is missing -------------------------------------------------------------------------


def test_a_killed_rank_is_named_by_all_others_however_they_wait(tmp_path: Path) -> None:
    results = run_ranks(PROGRAM, "a_rank_dies", 4, tmp_path, arguments=[20])
    assert results[1].status == -9
    for survivor in (results[0], results[2], results[3]):
        assert survivor.status == 0, survivor.told
        assert "rank 1" in survivor.value.lower()


def test_a_killed_rank_of_a_subset_is_named_as_the_program_knows_it(tmp_path: Path) -> None:
    results = run_ranks(PROGRAM, "a_rank_of_a_subset_dies", 3, tmp_path)
    assert results[2].status == -9
    assert "That is rank 2 of the default group." in results[1].value
    assert results[1].value.endswith("[2]")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "rank 1 died"),
        pytest.param("mismatch", "all_reduce (sum) of 11 float32", marks=pytest.mark.slow),
        pytest.param(
            "interrupted",
            "Rank 0 of the group gave up: A collective was ended by KeyboardInterrupt",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("across", ACROSS)
def test_a_failure_inside_one_host_is_told_to_the_others_at_once(
    across: str, how: str, said: str, tmp_path: Path
) -> None:
    if across == "ccl" and not has_oneccl():
        pytest.skip("needs oneCCL: pip install 'accel-ops[ccl]', or CCL_ROOT")
    environments = [names | {"ACCEL_DISTRIBUTED_ACROSS": across} for names in hosts("aabb")]
    timeout_s = 120
    results = run_ranks(PROGRAM, "one_host_fails", 4, tmp_path, arguments=[how, timeout_s], environments=environments)
    for rank, result in enumerate(results):
        if rank == 1 and how == "killed":
            assert result.status == -9
            continue
        assert result.status == 0, result.told
        first, seconds, second, seconds_again = result.value
        assert seconds < timeout_s / 4
        assert seconds_again < 5
        if rank < 2 and how == "mismatch":
            assert said in first
            assert "call the same, in the same order. The ranks need a new group." in first
            assert "usable" not in first
            assert first == second
        if rank == 2:  # the leader of the other host
            assert said in first
            assert first == second
        elif rank == 3:
            assert "It is the first rank of its host and gave up between the 2 hosts" in first


class FakeParts:
    """The collectives inside a host and between hosts, and the note: each does what it is told, and notes are kept."""

    def __init__(self) -> None:
        self.act: Callable[[], None] = lambda: None
        self.notes: list[str] = []
        self.waits = 0

    def barrier(self) -> None:
        self.act()

    def close(self) -> None:
        pass

    def leave(self, why: str) -> None:
        self.notes.append(why)

    def read_after_failure(self) -> str:
        self.waits += 1
        return "Rank 9 of the group gave up."


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_note_is_waited_for_unless_this_rank_itself_has_closed_the_group(is_closed: bool) -> None:
    inside, across, note = FakeParts(), FakeParts(), FakeParts()
    group: Any = HierarchicalCollectives(Layout(0, ((0,), (1,))), inside, across, note)  # type: ignore[arg-type]

    def fail() -> None:
        if is_closed:
            group.close()  # as another thread may
        raise CommunicationError("Ended.")

    across.act = fail
    with pytest.raises(CommunicationError) as caught:
        group.barrier()
    assert caught.value.message == ("Ended." if is_closed else "Ended. Rank 9 of the group gave up.")
    assert note.waits == (not is_closed)
    assert note.notes == [caught.value.message]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_group_that_is_closed_between_two_steps_leaves_a_note(is_closed: bool) -> None:
    inside, across, note = FakeParts(), FakeParts(), FakeParts()
    group: Any = HierarchicalCollectives(Layout(0, ((0,), (1,))), inside, across, note)  # type: ignore[arg-type]

    def fail() -> None:
        raise OpArgumentError("The group is closed.")

    def close() -> None:
        group.close()  # as another thread may
        inside.act = fail

    if is_closed:
        across.act = close
        with pytest.raises(CommunicationError, match="destroyed during a collective"):
            group.barrier()
        assert note.notes == ["The group was destroyed during a collective."]
    else:
        inside.act = fail
        with pytest.raises(OpArgumentError):  # nothing was sent, and the group is as usable as before
            group.barrier()
        assert note.notes == []
        inside.act = lambda: None
        group.barrier()


def test_ranks_that_have_made_different_numbers_of_groups_are_told_so() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    mine = RankFacts("a", "", "gloo")
    with pytest.raises(CommunicationError, match="Rank 1 of the group did not come") as caught:
        exchange(MadeGroups(store, 0), 2, mine)
    assert "has made" not in str(caught.value)
    again, other = MadeGroups(store, 0), MadeGroups(store, 1)  # rank 0 tries again, rank 1 comes
    with pytest.raises(CommunicationError, match=r"did not come.*made 1 groups of this name, this rank 2: unless"):
        exchange(again, 2, mine)
    with pytest.raises(CommunicationError, match=r"Rank 0 of.*made 2 groups of this name, this rank 1: unless"):
        exchange(other, 2, mine)  # and does not believe what rank 0 told at first
    assert exchange(MadeGroups(store, 1), 2, mine) == [mine, mine]  # as many as rank 0's


def test_a_group_is_made_while_another_one_has_collectives_between_hosts_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    assert ranks("makes_a_group_meanwhile", 2, tmp_path, environments=[names | meeting for names in hosts("ab")])


class PythonStore(dist.Store):
    """As etcd's, which has no clone()."""

    def __init__(self) -> None:
        super().__init__()


def test_a_store_that_is_written_in_python_serves_all_threads_itself() -> None:
    store = dist.PrefixStore("a", PythonStore())
    assert store_for_threads(store) is store


def test_a_host_that_dies_is_an_error_at_once_on_all_ranks_of_the_other(tmp_path: Path) -> None:
    timeout_s = 120
    results = run_ranks(PROGRAM, "a_host_dies", 3, tmp_path, arguments=[timeout_s], environments=hosts("aab"))
    assert results[2].status == -9
    for result in results[:2]:
        assert result.status == 0, result.told
        assert max(result.value[1::2]) < timeout_s / 2
    leader, other = results[0].value, results[1].value
    assert "Between the 2 hosts of the group gloo failed" in leader[0]
    assert leader[2] == leader[0]
    assert "It is the first rank of its host and gave up between the 2 hosts" in other[0]


@pytest.mark.parametrize("names", ["aa", "ab"], ids=["inside a host", "between hosts"])
@pytest.mark.parametrize("destroys", [False, True], ids=["as it is", "destroying the group"])
def test_a_process_that_ends_in_the_middle_of_a_collective_ends_well(
    names: str, destroys: bool, tmp_path: Path
) -> None:
    results = run_ranks(PROGRAM, "ends_meanwhile", 2, tmp_path, arguments=[destroys], environments=hosts(names))
    (seconds, threads), (said, _) = values(results)
    assert seconds < 5
    assert threads == 0
    assert (
        "rank 0 has closed the group" in said.lower() or "Rank 0 of the group gave up: The group was destroyed" in said
    )


def test_where_one_rank_cannot_load_the_op_gloo_does_all_and_a_warning_says_why(tmp_path: Path) -> None:
    if isinstance(find_prebuilt(ShareMemCommBuilder()), Entry):
        pytest.skip("the op is prebuilt, so that every rank can load it")
    environments = [{}, {"ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(tmp_path / "empty")}]
    results = run_ranks(PROGRAM, "without_the_op", 2, tmp_path / "ranks", environments=environments)
    for result in results:
        assert result.status == 0, result.told
        assert result.value == {"ours": {}, "gloo": {"allreduce": 1, "barrier": 1}}
        assert "rank 1 cannot use shared memory" in result.told
        assert "Unset ACCEL_JIT" in result.told


def test_only_groups_of_this_backend_count() -> None:
    with pytest.raises(OpArgumentError, match="counts nothing"):
        distributed.collective_counts()


def test_registering_again_does_nothing() -> None:
    before = list(dist.Backend.backend_list)
    distributed.register()
    assert list(dist.Backend.backend_list) == before
    assert "accel" in before


# The queue -----------------------------------------------------------------------------------------


def test_the_queue_keeps_the_order_whoever_does_the_work() -> None:
    queue, done = WorkQueue("a test"), []
    works = [queue.submit(lambda number=number: done.append(number), []) for number in range(50)]
    queue.run(lambda: done.append(50))
    assert done == list(range(51))
    assert all(work.is_success() and work.wait() for work in works)


def test_an_error_in_the_queue_is_raised_by_wait_and_the_future_and_the_next_goes_on() -> None:
    queue = WorkQueue("a test")

    def fail() -> None:
        raise ValueError("broken")

    failing, good = queue.submit(fail, []), queue.submit(lambda: None, [])
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            failing.wait()
    assert isinstance(failing.exception(), ValueError)
    assert failing.is_completed()
    assert not failing.is_success()
    with pytest.raises(ValueError, match="broken"):
        failing.get_future().wait()
    assert good.wait()


def test_a_wait_with_a_timeout_says_that_it_ended() -> None:
    queue, held = WorkQueue("a test"), threading.Event()
    queue.submit(lambda: held.wait() and None, [])
    behind = queue.submit(lambda: None, [])
    while not queue._is_doing:  # the thread has begun
        pass
    with pytest.raises(CommunicationError, match=r"did not end within 0\.05 s"):
        behind.wait(timedelta(seconds=0.05))
    held.set()
    assert behind.wait()


@pytest.mark.parametrize("is_behind", [False, True], ids=["waited for", "behind a synchronous one"])
def test_a_signal_that_ends_a_collective_ends_its_work_and_no_wait_is_for_ever(is_behind: bool) -> None:
    queue = WorkQueue("a test")
    began = threading.Event()

    def collective() -> None:
        began.set()
        for _ in range(100_000):
            time.sleep(0.01)  # as a wait for another rank

    work = QueuedWork(queue, collective, [])
    queue._waiting.append(work)  # without the thread, which would be as fast
    future = work.get_future()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=lambda: (began.wait(), os.kill(os.getpid(), signal.SIGINT))).start()
        with pytest.raises(KeyboardInterrupt):
            queue.run(lambda: None) if is_behind else work.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert work.is_completed()
    for wait in (work.wait, future.wait):
        with pytest.raises(CommunicationError, match="KeyboardInterrupt ended the collective"):
            wait()
    assert queue.submit(lambda: None, []).wait()  # the queue goes on


def test_a_work_that_was_taken_and_lost_is_an_error() -> None:
    queue = WorkQueue("a test")
    work = QueuedWork(queue, lambda: None, [])  # an exception came between its being taken and its being done
    with pytest.raises(CommunicationError, match="an exception ended the collective"):
        work.wait()


def test_the_handler_of_a_signal_and_a_callback_get_an_error_and_no_deadlock() -> None:
    queue = WorkQueue("a test")
    said: list[str] = []

    def again(*_: object) -> None:
        with pytest.raises(CommunicationError, match="in the middle of a collective of a test") as caught:
            queue.run(lambda: None)
        said.append(str(caught.value))

    before = signal.signal(signal.SIGUSR1, again)
    try:
        queue.run(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    work = QueuedWork(queue, lambda: None, [])
    work.get_future().add_done_callback(again)
    queue._waiting.append(work)
    assert work.wait()
    assert len(said) == 2
    queue.run(lambda: said.append("as usable as before"))
    assert len(said) == 3


def test_a_queue_that_is_closed_meanwhile_raises_nothing_of_its_own() -> None:
    for _ in range(300):
        queue = WorkQueue("a test")
        works = [QueuedWork(queue, lambda: None, []) for _ in range(20)]
        queue._waiting.extend(works)
        closer = threading.Thread(target=queue.close, args=[CommunicationError("gone")])
        closer.start()
        for work in works:
            with contextlib.suppress(CommunicationError):
                work.wait()
        closer.join()
        assert all(work.is_completed() for work in works)


def test_a_closed_queue_fails_what_waits_and_takes_nothing() -> None:
    queue, held = WorkQueue("a test"), threading.Event()
    queue.submit(lambda: held.wait() and None, [])
    while not queue._is_doing:
        pass
    behind = queue.submit(lambda: None, [])
    queue.close(CommunicationError("gone"))
    held.set()
    with pytest.raises(CommunicationError, match="gone"):
        behind.wait()
    with pytest.raises(CommunicationError, match="destroyed"):
        queue.submit(lambda: None, [])
    with pytest.raises(CommunicationError, match="destroyed"):
        queue.run(lambda: None)


def test_a_closed_queue_has_no_thread_that_the_end_of_the_process_could_meet() -> None:
    queue, done = WorkQueue("a test that is closed"), threading.Event()

    def slow() -> None:
        done.wait(0.2)

    work = queue.submit(slow, [])
    while not queue._is_doing:
        pass
    queue.close(CommunicationError("gone"))
    queue.join()
    assert queue._thread is not None
    assert not queue._thread.is_alive()
    assert work.is_success()


def test_a_handler_that_closes_the_queue_in_the_middle_of_a_collective_does_not_wait_for_itself() -> None:
    queue = WorkQueue("a test")
    queue.submit(lambda: None, []).wait()
    began = time.monotonic()

    def destroy() -> None:
        queue.close(CommunicationError("gone"))
        queue.join()

    queue.run(destroy)
    assert time.monotonic() - began < 4  # the thread, which waits for its turn, would be waited for for 5
    queue.join()
    assert queue._thread is not None
    assert not queue._thread.is_alive()


def test_the_thread_of_a_queue_that_nobody_has_ends() -> None:
    queue = WorkQueue("a test that ends")
    queue.submit(lambda: None, []).wait()
    thread = queue._thread
    assert thread is not None
    del queue
    thread.join(timeout=60)
    assert not thread.is_alive()
