"""How ranks exchange shared memory while other processes connect to their sockets."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from op_builder.ops.comm.shared_memory_meeting import Meeting
from tests.support.launching import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


def listening() -> set[str]:
    """The addresses of ranks, which every user of the host can read."""
    return set(re.findall(r"@(accel-shm-comm-\w+)", Path("/proc/net/unix").read_text()))


def meet(store: dist.Store, rank: int) -> int:
    """Exchange a descriptor of memory that holds the rank; returns what the other's holds."""
    own = os.memfd_create(f"rank{rank}")
    os.write(own, bytes([rank]))
    _, descriptors = Meeting(store, "group", 2, rank, 60.0).exchange(own)
    held = os.pread(descriptors[1 - rank], 1, 0)[0]
    for descriptor in descriptors:
        os.close(descriptor)
    return held


@pytest.mark.parametrize("message", [b"", b"no secret", bytes(20), bytes(4096)])
def test_a_flood_of_connections_delays_the_ranks_but_does_not_stop_them(message: bytes) -> None:
    before, strangers = listening(), []
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(meet, store, 0)
        wait_until(lambda: listening() - before)
        (address,) = listening() - before
        for _ in range(30):  # more than the socket queues
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stranger.setblocking(False)
            strangers.append(stranger)
            if stranger.connect_ex(f"\0{address}") == 0 and message:
                stranger.send(message)
        second = ranks.submit(meet, store, 1)
        assert (first.result(), second.result()) == (1, 0)
    for stranger in strangers:
        stranger.close()
