"""Two hosts on this machine with a name and an sshd each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import network_namespaces
from tests.support.waiting import wait_until

PORT = 2222


@dataclass(frozen=True)
class TwoHosts:
    """``host-a`` and ``host-b``: the beginning of a command on the first, and how ssh gets to either unasked."""

    prefix: list[str]
    ssh_args: str
    agent: Path
    interface: str


@contextmanager
def two_hosts(directory: Path) -> Iterator[TwoHosts]:
    """The hosts; skips where they cannot be made."""
    sshd = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
    if sshd is None or any(shutil.which(name) is None for name in ("unshare", "ssh", "ssh-keygen")):
        pytest.skip("needs util-linux, openssh-client and openssh-server")
    key = directory / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    ssh_args = f"-p {PORT} -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    agent = directory / "ssh"
    agent.write_text(f'#!/bin/sh\nexec ssh {ssh_args} "$@"\n')
    agent.chmod(0o755)
    with network_namespaces.two_hosts() as hosts, ExitStack() as servers:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself in
        for letter, host in zip("ab", hosts, strict=True):
            config = directory / f"sshd_{letter}"
            config.write_text(
                f"Port {PORT}\nListenAddress {host.address}\nHostKey {key}\nAuthorizedKeysFile {key}.pub\n"
                "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
            )
            script = f"hostname host-{letter} && exec {sshd} -D -e -f {config}"
            command = [*host.prefix, "unshare", "--uts", "sh", "-c", script]
            with (directory / f"sshd_{letter}.log").open("w") as log:
                server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            servers.callback(server.wait)
            servers.callback(server.terminate)
            ssh = [*hosts[0].prefix, str(agent), "-o", "BatchMode=yes", host.address, "true"]
            wait_until(lambda ssh=ssh: subprocess.run(ssh, capture_output=True, check=False).returncode == 0)
        yield TwoHosts(hosts[0].prefix, ssh_args, agent, hosts[0].interface)
