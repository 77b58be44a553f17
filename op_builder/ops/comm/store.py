"""The ``torch.distributed`` store through which the ranks of a group meet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from op_builder import env
from op_builder.errors import OpArgumentError, SharedMemoryCommError
from op_builder.system.listener import listen


def default_store(rank: int, timeout_s: float) -> Any:
    """The store of ``torch.distributed``'s default process group, else one at MASTER_ADDR:MASTER_PORT.

    If RANK is unset, this is ``rank``; rank 0 serves the store.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    host, port = env.MASTER_ADDR.get(), env.MASTER_PORT.get()
    if host is None or port is None:
        raise OpArgumentError(
            "The ranks have no common store: torch.distributed is not initialized, and MASTER_ADDR or MASTER_PORT is "
            "unset.",
            "Start them with a launcher, set the two variables, or pass new_group(..., store=...).",
        )
    own_rank = env.RANK.get()
    is_server = (rank if own_rank is None else own_rank) == 0 and not env.TORCHELASTIC_USE_AGENT_STORE.get()
    patience = timedelta(seconds=timeout_s)
    try:
        own = listen(host, port) if is_server else None
        descriptor = None if own is None else own.detach()  # torch closes it
        store = TCPStore(
            host,
            port,
            None,
            is_server,
            patience,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=descriptor,
        )
    except RuntimeError as error:
        raise store_error(f"a rank {'served' if is_server else 'called'} {host}:{port}", error, timeout_s) from error
    # An agent's store outlives restarted ranks.
    return PrefixStore(f"attempt_{env.TORCHELASTIC_RESTART_COUNT.get()}", store)


def store_error(when: str, error: RuntimeError, timeout_s: float) -> SharedMemoryCommError:
    return SharedMemoryCommError(
        f"The ranks' store failed when {when}, within {timeout_s:g} s: {str(error).splitlines()[0]}",
        "Check that rank 0, which serves the store, runs at MASTER_ADDR, and that MASTER_PORT is free "
        "there; or raise timeout_s or ACCEL_COMM_TIMEOUT_S.",
        operation="new_group",
    )
