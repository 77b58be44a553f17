"""Hosts for tests: two network namespaces of this machine, joined by a pair of virtual interfaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.waiting import wait_until

ADDRESSES = ("10.213.77.1", "10.213.77.2")  # private addresses; the namespaces have no way out


@dataclass(frozen=True)
class Host:
    """A namespace, by its name, with the address that it has."""

    name: str
    address: str
    interface: str = "cable"

    @property
    def prefix(self) -> list[str]:
        """The beginning of a command that is to run on it."""
        return ["ip", "netns", "exec", self.name]


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """Two namespaces that reach each other, and nothing else; skips where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip (apt-get install iproute2)")
    tag = uuid.uuid4().hex[:6]
    first, second = hosts = [Host(f"accel-{tag}-{end}", address) for end, address in enumerate(ADDRESSES)]
    commands = [f"netns add {host.name}" for host in hosts]
    commands.append(f"-n {first.name} link add {first.interface} type veth peer {second.interface} netns {second.name}")
    for host in hosts:
        commands.append(f"-n {host.name} addr add {host.address}/24 dev {host.interface}")
        commands += [f"-n {host.name} link set {interface} up" for interface in (host.interface, "lo")]
    try:
        for command in commands:
            done = _ip(command)
            if done.returncode != 0:
                pytest.skip(f"network namespaces cannot be made: ip {command}: {done.stderr.strip()}")
        # An interface counts as down for up to a second more, and libfabric ignores it.
        wait_until(lambda: all(_is_up(host) for host in hosts))
        yield hosts
    finally:
        for host in hosts:
            _ip(f"netns del {host.name}")


def _is_up(host: Host) -> bool:
    return "UP" in _ip(f"-n {host.name} -brief link show {host.interface}").stdout.split()


def _ip(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
