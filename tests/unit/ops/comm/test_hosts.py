"""Which ranks of a group are on one host, how they exchange this, and what a group of several hosts does alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from op_builder.errors import CommunicationError, OpArgumentError
from op_builder.ops import distributed
from op_builder.ops.comm.across import store_for_threads
from op_builder.ops.comm.hosts import HostFacts, Layout, exchange, host_identity, layout, own_part, require_same_number
from op_builder.ops.comm.shared_memory_group import usable_cores
from op_builder.ops.comm.shared_memory_meeting import MemoryFacts


def test_registering_again_does_nothing() -> None:
    before = list(dist.Backend.backend_list)
    distributed.register()
    assert list(dist.Backend.backend_list) == before
    assert "accel" in before


def test_only_groups_of_this_backend_count() -> None:
    with pytest.raises(OpArgumentError, match="does not count its collectives"):
        distributed.collective_counts()


def test_cores_are_those_of_all_ranks_and_no_more_than_a_quota() -> None:
    def facts(cpus: list[int], quota_cores: float | None) -> MemoryFacts:
        return MemoryFacts(0, 0, 0, "", cpus, quota_cores)

    assert usable_cores([facts([0, 1], None), facts([1, 2], None)]) == 3
    assert usable_cores([facts([0, 1], None), facts([2, 3], 1.5)]) == 1.5
    assert usable_cores([facts([0], 8.0)]) == 1


def test_processes_of_one_machine_have_one_identity_and_a_name_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_HOST_ID", raising=False)
    assert host_identity() == host_identity() != ""
    monkeypatch.setenv("ACCEL_HOST_ID", "shelf 7")
    assert host_identity() == "shelf 7"


def test_the_layout_says_who_leads_and_who_is_where() -> None:
    facts = [HostFacts(host, "") for host in "abbac"]
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
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(CommunicationError, match="Rank 1 did not join"):
        exchange(store, 0, 2, HostFacts("a", ""))


def test_the_facts_of_a_rank_that_was_restarted_alone_are_not_used() -> None:
    store = dist.HashStore()
    number, _ = own_part(store, 0)
    own_part(store, 1)
    require_same_number(store, number, 0, 2)
    own_part(store, 1)  # again
    with pytest.raises(CommunicationError, match=r"Rank 1 has created 2 groups .* this rank 1"):
        require_same_number(store, number, 0, 2)


class PythonStore(dist.Store):
    """As etcd's, which has no clone()."""

    def __init__(self) -> None:
        super().__init__()


def test_a_store_that_is_written_in_python_serves_all_threads_itself() -> None:
    store = dist.PrefixStore("a", PythonStore())
    assert store_for_threads(store) is store
