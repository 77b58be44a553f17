"""The ``torch.distributed`` backend "accel": importing this registers it.

    import op_builder.ops.distributed
    torch.distributed.init_process_group("accel")

Collectives of CPU tensors go through shared memory inside a host, and through gloo between hosts; gloo runs
everything else. See :class:`AccelProcessGroup` and docs/distributed.md.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import torch.distributed as dist

# Imported before a group exists: its functions have the default group as a default argument, which would keep it, with
# gloo's threads, until the interpreter ends. torch's compiler and an optimizer's first step import it, in 3 ms.
import torch.distributed.nn.functional  # noqa: F401
from torch._C._distributed_c10d import PrefixStore, Store

from op_builder.errors import AccelError, OpArgumentError
from op_builder.ops.comm.across import Across, FailureNote
from op_builder.ops.comm.collectives import Collectives, HierarchicalCollectives
from op_builder.ops.comm.gloo import GroupGloo
from op_builder.ops.comm.hosts import HostFacts, Layout, exchange, host_identity, layout, own_part, require_same_number
from op_builder.ops.comm.process_group import AccelProcessGroup, CollectiveCounts, Parts
from op_builder.ops.comm.shm_comm import OP as SHM_COMM
from op_builder.ops.declare import load_host

__all__ = ["BACKEND", "AccelProcessGroup", "CollectiveCounts", "collective_counts", "register"]

logger = logging.getLogger(__name__)

BACKEND = "accel"
_MOST_NAMED = 8  # ranks in the name of a group


def register() -> None:
    """Register the backend with ``torch.distributed``. A second call does nothing."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


def collective_counts(group: dist.ProcessGroup | None = None) -> CollectiveCounts:
    """How many collectives of each kind a group of this backend ran, and how many gloo ran for it.

    Args:
        group: None for the default group.

    Raises:
        OpArgumentError: the group belongs to another backend.
    """
    selected = group if group is not None else dist.group.WORLD
    if not isinstance(selected, AccelProcessGroup):
        raise OpArgumentError(
            f"The group is a {type(selected).__name__}, which does not count its collectives.",
            'Create it with init_process_group("accel").',
        )
    return selected.counts()


def _create(options: Any, _backend_options: Any = None) -> AccelProcessGroup:
    """Make this rank's part of a group; torch calls it on all ranks of the group."""
    rank, size = options.group_rank, options.group_size
    number, store = own_part(options.store, rank)
    timeout = dist.distributed_c10d.default_pg_timeout if options.timeout is None else options.timeout
    members = tuple(options.global_ranks_in_group)
    name = _name(str(options.group_id), members)
    module, reason = _load()
    facts = exchange(store, rank, size, HostFacts(host_identity(), reason))
    require_same_number(options.store, number, rank, size)
    gloo = GroupGloo(PrefixStore("gloo", store), rank, size, timeout)
    found = layout(rank, facts)
    collectives: Collectives | None = None
    if _shared_memory_serves(name, facts):
        collectives = _host_group(module, store, found, name, timeout.total_seconds())
        if len(found.hosts) > 1:
            note = FailureNote(store, rank)
            bridge = Across(store, found, timeout, note) if found.is_leader else None
            collectives = HierarchicalCollectives(found, collectives, bridge, note)
    return AccelProcessGroup(store, rank, size, Parts(gloo, collectives, found, name, members))


def _name(group_id: str, members: tuple[int, ...]) -> str:
    """A group's name in messages: its ranks, because users do not know the number that torch assigns."""
    if group_id in ("", "0") or not members:
        return "default"
    if len(members) > _MOST_NAMED:
        return f"{len(members)} ranks from {members[0]} to {members[-1]}"
    return f"ranks {', '.join(map(str, members))}"


def _load() -> tuple[Any, str]:
    """The module of shm_comm; or None and the reason why it cannot be loaded."""
    try:
        return load_host(SHM_COMM), ""
    except AccelError as error:
        return None, str(error)


def _shared_memory_serves(name: str, facts: list[HostFacts]) -> bool:
    """Whether all ranks can use shared memory; if not, all use gloo."""
    refusing = [(rank, fact.reason) for rank, fact in enumerate(facts) if fact.reason]
    if refusing:
        rank, reason = refusing[0]
        logger.warning("Group %r uses gloo: rank %d cannot use shared memory. %s", name, rank, reason)
    return not refusing


def _host_group(module: Any, store: Store, found: Layout, name: str, timeout_s: float) -> Collectives:
    prefixed = PrefixStore(f"host{found.host}", store)
    if len(found.hosts) > 1:
        name = f"{name}, host {found.host}"
    group = module.new_group(len(found.local_ranks), found.local_rank, store=prefixed, name=name, timeout_s=timeout_s)
    return cast(Collectives, group)


register()
