"""Hosts and their slots: hostfiles, ``--include`` and ``--exclude``.

docs/launcher.md describes their format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accelerator.errors import LaunchError
from accelerator.launch.topology import parse_list
from op_builder.messages import did_you_mean

_EXPECTED = "a line such as 'name slots=4'"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# Commands take a name that begins with "-" for an option, and the configuration of ssh may pass names to a shell.
_NAME = re.compile(r"([\w.][\w.+\\$-]*@)?(\w[\w.-]*|\[?[\da-fA-F:.]+(%[\w.-]+)?\]?)")


@dataclass(frozen=True)
class Host:
    """One host of a launch.

    Attributes:
        name: for ssh and the launchers.
        slots: the number of ranks that it can run.
        chosen: the slots that are used, ascending.
    """

    name: str
    slots: int
    chosen: tuple[int, ...]

    @property
    def is_local(self) -> bool:
        return self.name in _LOCAL_NAMES


def host_of(name: str, slots: int) -> Host:
    """A host with all of its slots."""
    return Host(name, slots, tuple(range(slots)))


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a file, in its order."""
    try:
        return parse_hostfile(text_of(path, path.read_bytes()), str(path))
    except FileNotFoundError:
        raise LaunchError(f"Hostfile {path} does not exist.", "Correct the path in --hostfile.") from None
    except OSError as error:
        raise unreadable(path, error) from None


def text_of(path: Path, data: bytes) -> str:
    """The text of a file that the user wrote. Bytes of another encoding reach the ranks unchanged, as in Python."""
    if b"\0" in data:
        raise LaunchError(f"{path} is not a text file.", "Save it as text, in UTF-8.")
    return data.decode("utf-8-sig", "surrogateescape")


def unreadable(path: Path, error: OSError) -> LaunchError:
    """The error for a file of the user's that the system refuses to read."""
    return LaunchError(
        f"{path} cannot be read: {error.strerror}.",
        f"Run `ls -l {path}` to see who may read it, and make it readable, or pass another file.",
    )


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """The hosts in a hostfile's text; ``source`` is its name in errors."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.split("\n"), 1):  # a comment with another separator stays one
        name, *words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split() or [""]
        if not name:
            continue
        slots = "1"
        if not _is_ipv6_address(name) and ":" in name:
            name, _, slots = name.partition(":")
        settings = {key.lower().replace("-", "_"): value for key, _, value in (word.partition("=") for word in words)}
        slots = settings.pop("slots", slots)
        settings.pop("max_slots", None)  # Open MPI's limit for more ranks than slots, which this launcher never starts
        if "=" in name:
            expected = f"{_EXPECTED}, the host's name first"
        elif settings:
            expected = f"{_EXPECTED}, not {' '.join(words)!r}"
        elif re.fullmatch(r"0*[1-9]\d{0,4}", slots, re.ASCII) is None:
            expected = f"a number of slots from 1 to 99999, not {slots!r:.80}"
        elif not is_host_name(name):
            expected = f"a host's name or address, not {name!r}"
        elif name in hosts:
            expected = f"each host once; {name} is already listed"
        else:
            hosts[name] = host_of(name, int(slots))
            continue
        raise LaunchError(f"{source}:{number}: {line.strip()!r}: expected {expected}.", "Correct that line.")
    if not hosts:
        raise LaunchError(f"Hostfile {source} names no host: expected {_EXPECTED}.", "Add a line for each host.")
    return tuple(hosts.values())


def choose_hosts(hosts: Sequence[Host], include: str | None, exclude: str | None) -> tuple[Host, ...]:
    """The hosts and slots that ``--include`` or ``--exclude`` select, in the order of ``hosts``."""
    if include is not None and exclude is not None:
        raise LaunchError("--include and --exclude cannot be used together.", "Use one of them.")
    if include is not None:
        wanted = _parse_choice(include, "--include", hosts)
        return tuple(replace(host, chosen=wanted[host.name]) for host in hosts if host.name in wanted)
    unwanted = {} if exclude is None else _parse_choice(exclude, "--exclude", hosts)
    left = (
        replace(host, chosen=tuple(slot for slot in host.chosen if slot not in unwanted.get(host.name, ())))
        for host in hosts
    )
    chosen = tuple(host for host in left if host.chosen)
    if not chosen:
        raise LaunchError(f"--exclude {exclude!r} excludes all slots of all hosts.", "Exclude fewer hosts or slots.")
    return chosen


def limit(hosts: Sequence[Host], nodes: int | None, accelerators: int | None) -> tuple[Host, ...]:
    """The first ``nodes`` hosts, and of each the first ``accelerators`` slots; None: all."""
    if nodes is not None and nodes > len(hosts):
        raise LaunchError(
            f"--num_nodes {nodes}: the hostfile has {len(hosts)} hosts.",
            f"Pass at most --num_nodes {len(hosts)}, or add hosts to the hostfile.",
        )
    for host in hosts[:nodes]:
        if accelerators is not None and accelerators > len(host.chosen):
            found = f"host {host.name} has {len(host.chosen)} slots"
            raise LaunchError(
                f"--num_accelerators {accelerators}: {found}.",
                f"Pass at most --num_accelerators {len(host.chosen)}, or raise slots= of the host in the hostfile.",
            )
    return tuple(replace(host, chosen=host.chosen[:accelerators]) for host in hosts[:nodes])


def _parse_choice(text: str, option: str, hosts: Sequence[Host]) -> dict[str, tuple[int, ...]]:
    known = {host.name: host for host in hosts}
    choice: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        # The name may contain colons (an IPv6 address); slots do not.
        name, colon, slots_text = (part, "", "") if part in known else part.rpartition(":")
        name = name.strip() or part
        slots = parse_list(slots_text) if colon or name not in known else known[name].chosen
        if name not in known:
            found = f"unknown host {name!r}; the hosts are {', '.join(known)}"
        elif not slots:
            found = f"{slots_text!r} is not a list of slots"
        elif slots[-1] >= known[name].slots:
            found = f"host {name} has slots 0 to {known[name].slots - 1}, not {slots[-1]}"
        else:
            choice[name] = tuple(sorted({*choice.get(name, ()), *slots}))  # a host may be named several times
            continue
        near = "" if name in known else did_you_mean(name, known)
        raise LaunchError(f"{option} {text!r}: {found}.", f"{near} An example is host:0,1@host2.".lstrip())
    return choice


def is_host_name(name: str) -> bool:
    """Whether this is a host's name or address, and neither a command's option nor text that a shell would change."""
    try:
        name.rpartition("@")[2].encode("idna")  # as Python resolves it
    except UnicodeError:  # a part between dots is empty or too long
        return False
    return _NAME.fullmatch(name) is not None


def _is_ipv6_address(name: str) -> bool:
    return re.fullmatch(r"(.*@)?[0-9a-fA-F:.]+(%\w+)?", name) is not None and name.count(":") > 1
