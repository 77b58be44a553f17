"""Hosts and the slots of each: hostfiles, and what ``--include`` and ``--exclude`` leave of them.

A hostfile has one line for each host, ``name slots=N``; ``#`` begins a comment. ``--include`` and
``--exclude`` name hosts, and slots of them: ``host:0,1@host2`` is slots 0 and 1 of the one and all of the
other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accelerator.launch.errors import HostfileError
from accelerator.launch.lists import parse_list

_EXPECTED = "a line such as 'name slots=4'"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Host:
    """One host of a launch.

    Attributes:
        name: what ssh and the launchers call it.
        slots: how many ranks it has room for.
        chosen: the slots that are used, by rising number.
    """

    name: str
    slots: int
    chosen: tuple[int, ...]

    @property
    def is_local(self) -> bool:
        return self.name in _LOCAL_NAMES


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a file, in its order.

    Raises:
        HostfileError: it cannot be read, or a line is wrong; the message has the file, the line and what was expected.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise HostfileError(f"Hostfile {path} cannot be read: {reason}.", "Correct --hostfile.") from None
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """The hosts of a hostfile's text; ``source`` is what errors call it."""
    hosts: dict[str, tuple[Host, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}:{number}"
        if len(words) != 2:
            raise _wrong(where, line, _EXPECTED)
        name, slots_text = words
        if set(name) & set("=,") or (":" in name and not _is_ipv6_address(name)):
            raise _wrong(where, line, f"{_EXPECTED}, the host's name first")
        found = re.fullmatch(r"slots=(\d+)", slots_text)
        if not found or int(found[1]) < 1:
            raise _wrong(where, line, f"'slots=' and a number of at least 1, not {slots_text!r}")
        if name in hosts:
            raise _wrong(where, line, f"each host once; {name} stands in line {hosts[name][1]} already")
        slots = int(found[1])
        hosts[name] = (Host(name, slots, tuple(range(slots))), number)
    if not hosts:
        raise HostfileError(f"Hostfile {source} names no host: expected {_EXPECTED}.", "Add a line for each host.")
    return tuple(host for host, _ in hosts.values())


def choose_hosts(hosts: Sequence[Host], include: str | None, exclude: str | None) -> tuple[Host, ...]:
    """What ``--include`` or ``--exclude`` leave, in the order of ``hosts``.

    Raises:
        HostfileError: both are given, one names what is not there, or nothing is left.
    """
    if include is not None and exclude is not None:
        raise HostfileError("--include and --exclude are both given.", "Give one of them.")
    if include is not None:
        wanted = _parse_choice(include, "--include", hosts)
        left = [replace(host, chosen=wanted[host.name]) for host in hosts if host.name in wanted]
    elif exclude is not None:
        unwanted = _parse_choice(exclude, "--exclude", hosts)
        left = [
            replace(host, chosen=tuple(slot for slot in host.chosen if slot not in unwanted.get(host.name, ())))
            for host in hosts
        ]
    else:
        left = list(hosts)
    left = [host for host in left if host.chosen]
    if not left:
        raise HostfileError(f"--exclude {exclude!r} leaves no slot of any host.", "Exclude less.")
    return tuple(left)


def limit(hosts: Sequence[Host], nodes: int | None, accelerators: int | None) -> tuple[Host, ...]:
    """The first ``nodes`` hosts, and of each the first ``accelerators`` slots; None leaves all.

    Raises:
        HostfileError: there are fewer.
    """
    if nodes is not None and nodes > len(hosts):
        raise HostfileError(f"--num_nodes {nodes}: there are {len(hosts)} hosts.", "Ask for fewer, or add hosts.")
    limited = []
    for host in hosts[:nodes]:
        if accelerators is not None and accelerators > len(host.chosen):
            raise HostfileError(
                f"--num_accelerators {accelerators}: host {host.name} has {len(host.chosen)} slots.",
                "Ask for fewer, or raise its slots in the hostfile.",
            )
        limited.append(replace(host, chosen=host.chosen[:accelerators]))
    return tuple(limited)


def _parse_choice(text: str, option: str, hosts: Sequence[Host]) -> dict[str, tuple[int, ...]]:
    known = {host.name: host for host in hosts}
    choice: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        # The name may hold colons itself (an IPv6 address), slots never do.
        name, colon, slots_text = (part, "", "") if part in known else part.rpartition(":")
        name = name.strip()
        if name not in known:
            name = name or part
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise HostfileError(
                f"{option} {text!r}: there is no host {name!r}{hint}; there are {', '.join(known)}.",
                "Expected is host:0,1@host2, say.",
            )
        if name in choice:
            raise HostfileError(f"{option} {text!r} names {name} twice.", "Join its slots: host:0,1.")
        choice[name] = _parse_slots(slots_text, known[name], f"{option} {text!r}") if colon else known[name].chosen
    return choice


def _parse_slots(text: str, host: Host, where: str) -> tuple[int, ...]:
    slots = parse_list(text)
    if not slots:
        raise HostfileError(f"{where}: {text!r} is no list of slots.", "Expected is host:0,1@host2, say.")
    if slots[-1] >= host.slots:
        raise HostfileError(
            f"{where}: host {host.name} has slots 0 to {host.slots - 1}, not {slots[-1]}.",
            "Correct it, or raise its slots in the hostfile.",
        )
    return slots


def _is_ipv6_address(name: str) -> bool:
    return re.fullmatch(r"(.*@)?[0-9a-fA-F:.]+(%\w+)?", name) is not None and name.count(":") > 1


def _wrong(where: str, line: str, expected: str) -> HostfileError:
    return HostfileError(f"{where}: {line.strip()!r}: expected {expected}.", "Correct that line.")
