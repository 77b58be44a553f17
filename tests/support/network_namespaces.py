"""Hosts for tests: network namespaces of one machine, joined by a pair of virtual interfaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

SUBNET = "10.213.77"  # of nobody: the namespaces have no way out


@dataclass(frozen=True)
class Host:
    """A namespace, by its name, with the interface and the address that it has."""

    name: str
    interface: str
    address: str

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
    hosts = [Host(f"accel-{tag}-{end}", f"v{tag}{end}", f"{SUBNET}.{end + 1}") for end in (0, 1)]
    try:
        for host in hosts:
            made = _ip("netns", "add", host.name)
            if made.returncode != 0:
                pytest.skip(f"network namespaces cannot be made: {made.stderr.strip()}")
        made = _ip("link", "add", hosts[0].interface, "type", "veth", "peer", "name", hosts[1].interface)
        if made.returncode != 0:
            pytest.skip(f"virtual interfaces cannot be made: {made.stderr.strip()}")
        for host in hosts:
            for command in (
                ("link", "set", host.interface, "netns", host.name),
                ("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface),
                ("-n", host.name, "link", "set", host.interface, "up"),
                ("-n", host.name, "link", "set", "lo", "up"),
            ):
                done = _ip(*command)
                if done.returncode != 0:
                    pytest.skip(f"ip {' '.join(command)}: {done.stderr.strip()}")
        yield hosts
    finally:
        for host in hosts:
            _ip("netns", "del", host.name)


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
