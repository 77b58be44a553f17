"""How hosts meet, and what is reported where they do not."""

from __future__ import annotations

import socket
from dataclasses import replace

from accelerator.launch.job import Job
from accelerator.launch.torchrun import make_rendezvous, rendezvous_error
from tests.support.launching import free_port


def test_errors_of_one_host_do_not_mention_several() -> None:
    for port in (None, 4000):
        message = str(rendezvous_error(Job(("x",), (), master_port=port), TimeoutError("too late")))
        assert "hosts did not connect" not in message
        assert f"{socket.gethostname()} cannot connect: too late" in message
    many = Job(("x",), (), num_nodes=2, master_addr="a", master_port=4000)
    assert "The 2 hosts did not connect to a port 4000: too late" in str(
        rendezvous_error(many, TimeoutError("too late"))
    )


def test_the_rendezvous_timeout_does_not_depend_on_restarts() -> None:
    job = Job(("x",), (), num_nodes=2, master_addr="127.0.0.1", master_port=free_port())
    with_restarts = make_rendezvous(replace(job, max_restarts=1))[0].settings.timeout.join  # type: ignore[attr-defined]
    assert make_rendezvous(job)[0].timeout == with_restarts  # type: ignore[attr-defined]
