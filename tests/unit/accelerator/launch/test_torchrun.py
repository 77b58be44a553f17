"""How hosts meet, and what is reported where they do not."""

from __future__ import annotations

import socket

import pytest

from accelerator.errors import LaunchError
from accelerator.launch.job import Job
from accelerator.launch.torchrun import rendezvous_error, resolve


def test_errors_of_one_host_do_not_mention_several() -> None:
    one = str(rendezvous_error(Job(("x",), ()), TimeoutError("too late")))
    assert "hosts did not connect" not in one
    assert f"{socket.gethostname()} cannot connect: too late" in one
    job = Job(("x",), (), num_nodes=2, master_addr="a", master_port=4000)
    many = str(rendezvous_error(job, TimeoutError("too late")))
    assert "The 2 hosts did not connect to a port 4000: too late" in many


def test_an_address_that_cannot_be_resolved_is_reported() -> None:
    job = Job(("x",), (), num_nodes=2, master_addr="no-such-host.invalid")
    with pytest.raises(LaunchError, match=r"--master_addr no-such-host\.invalid cannot be resolved: "):
        resolve(job, timeout_s=0)
