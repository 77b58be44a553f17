"""Two hosts on this machine: network namespaces with a cable between them, a name and an sshd each."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PORT = 2222
INTERFACE = "cable"
ADDRESSES = {"a": "10.77.12.1", "b": "10.77.12.2"}


@dataclass(frozen=True)
class TwoHosts:
    """``a`` and ``b``; commands run on ``a``.

    Attributes:
        ssh_args: what ssh needs to get to either without a question.
        agent: ssh with these, for those who take no arguments for it.
        interface: of the cable, by host.
    """

    directory: Path
    namespaces: dict[str, str]
    ssh_args: str
    agent: Path
    interface: str

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespaces[host], *command]


def what_is_missing() -> str | None:
    """Why there cannot be two hosts here, None where there can."""
    missing = [name for name in ("ip", "unshare", "ssh", "ssh-keygen") if shutil.which(name) is None]
    if sshd() is None:
        missing.append("sshd")
    if missing:
        return f"needs {', '.join(missing)} (iproute2, util-linux, openssh-client, openssh-server)"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    tried = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"network namespaces are forbidden here: {tried.stderr.strip()}"


def sshd() -> str | None:
    return shutil.which("sshd") or shutil.which("/usr/sbin/sshd")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def two_hosts(directory: Path) -> Iterator[TwoHosts]:
    namespaces = {host: f"accel-{os.getpid()}-{host}" for host in ADDRESSES}
    servers = []
    try:
        for name in namespaces.values():
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        cable = f"link add {INTERFACE} type veth peer {INTERFACE} netns {namespaces['b']}"
        run("ip", "-n", namespaces["a"], *cable.split())
        for host, name in namespaces.items():
            run("ip", "-n", name, "address", "add", f"{ADDRESSES[host]}/24", "dev", INTERFACE)
            run("ip", "-n", name, "link", "set", INTERFACE, "up")
        key = directory / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself in
        for host, name in namespaces.items():
            config = directory / f"sshd_{host}"
            config.write_text(
                f"Port {PORT}\nListenAddress {ADDRESSES[host]}\nHostKey {key}\nAuthorizedKeysFile {key}.pub\n"
                "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
            )
            script = f"hostname host-{host} && exec {sshd()} -D -e -f {config}"
            command = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", script]
            log = (directory / f"sshd_{host}.log").open("w")
            servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        ssh_args = f"-p {PORT} -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        agent = directory / "ssh"
        agent.write_text(f'#!/bin/sh\nexec ssh {ssh_args} "$@"\n')
        agent.chmod(0o755)
        hosts = TwoHosts(directory, namespaces, ssh_args, agent, INTERFACE)
        for address in ADDRESSES.values():
            wait_for_ssh(hosts, address)
        yield hosts
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        for name in namespaces.values():
            with suppress(subprocess.CalledProcessError):
                run("ip", "netns", "delete", name)


def wait_for_ssh(hosts: TwoHosts, address: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        command = hosts.on("a", ["ssh", *hosts.ssh_args.split(), "-o", "BatchMode=yes", address, "true"])
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return
        assert time.monotonic() < deadline, tried.stderr
        time.sleep(0.1)
