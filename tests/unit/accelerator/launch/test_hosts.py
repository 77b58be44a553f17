"""Hostfiles, what --include and --exclude leave of them, and what is reported where hosts do not meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerator.errors import LaunchError
from accelerator.launch.hosts import Host, choose_hosts, limit, parse_hostfile, read_hostfile
from accelerator.launch.job import Job
from accelerator.launch.torchrun import connect, meeting_error

HOSTS = parse_hostfile("a slots=4\nb slots=2\nc slots=1\n", "hosts")


def short(hosts: tuple[Host, ...]) -> str:
    return " ".join(f"{host.name}:{','.join(map(str, host.chosen))}/{host.slots}" for host in hosts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# all of them\n\n a   slots=1  # the first\nuser@b slots=2\n", "a:0/1 user@b:0,1/2"),
        ("10.0.0.1 slots=1\r\nfe80::1%eth0 slots=1\r\n", "10.0.0.1:0/1 fe80::1%eth0:0/1"),
        ("a slots = 2\nb\tslots= 1\nc Slots =2", "a:0,1/2 b:0/1 c:0,1/2"),
        ("me@b:1\na:2\n", "me@b:0/1 a:0,1/2"),
        ("DOMAIN\\me@a-1.example.org\nrünning_1", "DOMAIN\\me@a-1.example.org:0/1 rünning_1:0/1"),
        ("a slots=2 max-slots=4\nb slots=1 max_slots = 2", "a:0,1/2 b:0/1"),
    ],
)
def test_hosts_are_read_in_order(text: str, expected: str) -> None:
    assert short(parse_hostfile(text, "hosts")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a slots=2\nb 2", r"hosts:2: 'b 2': expected a line such as 'name slots=4', not '2'"),
        ("a slots=0", r"hosts:1: .* a number of slots from 1 to 99999, not '0'"),
        (f"a slots={'9' * 5000}", r"from 1 to 99999"),
        ("a  # a note\u2028b slots=2\nc x", r"hosts:2: 'c x'"),
        ("a slot=2", r"not 'slot=2'"),
        ("a slots=2 b slots=2", r"hosts:1: .* expected a line such as"),
        ("slots=2 a", r"hosts:1: .* the host's name first"),
        ("a:x", r"not 'x'"),
        ("a slots=1\n\n#\na slots=1", r"hosts:4: 'a slots=1': expected each host once; a is already listed"),
        ("# nobody\n", r"Hostfile hosts names no host: expected a line such as"),
    ],
)
def test_an_invalid_line_is_reported_with_file_and_line(text: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        parse_hostfile(text, "hosts")


@pytest.mark.parametrize("name", ["-V", "-oProxyCommand=id@a", "me@-V", "a;id", "^hosts", "a,b", "..", "a" * 64])
def test_a_name_that_a_command_or_a_shell_would_interpret_is_refused(name: str) -> None:
    with pytest.raises(LaunchError, match=r"hosts:1: .*: expected (a host's name or address|a line such as)"):
        parse_hostfile(name, "hosts")


def test_a_file_that_is_no_text_is_reported_and_every_encoding_of_editors_is_read(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"missing does not exist"):
        read_hostfile(tmp_path / "missing")
    (tmp_path / "hosts").write_bytes(b"\x7fELF\x00")
    with pytest.raises(LaunchError, match="not a text file"):
        read_hostfile(tmp_path / "hosts")
    for content in (b"\xef\xbb\xbfa slots=2\n", b"a slots=2  # Zo\xeb's\n"):
        (tmp_path / "hosts").write_bytes(content)
        assert short(read_hostfile(tmp_path / "hosts")) == "a:0,1/2"


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (None, None, "a:0,1,2,3/4 b:0,1/2 c:0/1"),
        ("a:0,1@b", None, "a:0,1/4 b:0,1/2"),
        ("a:2@b@a:0", None, "a:0,2/4 b:0,1/2"),
        (None, "a:1@a@b:0", "b:1/2 c:0/1"),
        (None, "b:0,1", "a:0,1,2,3/4 c:0/1"),
        ("fe80::1", None, "fe80::1:0,1/2"),
        ("fe80::1:1", None, "fe80::1:1/2"),
    ],
)
def test_hosts_and_slots_are_selected(include: str | None, exclude: str | None, expected: str) -> None:
    hosts = parse_hostfile("fe80::1 slots=2", "hosts") if include and "::" in include else HOSTS
    assert short(choose_hosts(hosts, include, exclude)) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "message"),
    [
        ("a", "b", "cannot be used together"),
        ("worker", None, r"--include 'worker': unknown host 'worker'; the hosts are a, b, c"),
        ("aa:0", None, r"(?s)unknown host 'aa'; the hosts are a, .*Did you mean a\?"),
        ("a:4", None, r"host a has slots 0 to 3, not 4"),
        ("a:0-999999999", None, r"is not a list of slots"),
        (None, "a@b@c", r"excludes all slots of all hosts"),
    ],
)
def test_an_invalid_selection_is_refused(include: str | None, exclude: str | None, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        choose_hosts(HOSTS, include, exclude)


def test_hosts_and_slots_are_limited_by_number() -> None:
    assert short(limit(HOSTS, 2, 1)) == "a:0/4 b:0/2"
    assert short(limit(HOSTS, None, None)) == short(HOSTS)
    with pytest.raises(LaunchError, match="3 hosts"):
        limit(HOSTS, 4, None)
    with pytest.raises(LaunchError, match="1 slots"):
        limit(HOSTS, None, 2)


def test_hosts_that_do_not_meet_are_reported() -> None:
    job = Job(("x",), (), num_nodes=2, master_addr="a", master_port=4000)
    error = meeting_error(job, TimeoutError("too late"))
    assert "2 hosts did not connect to a port 4000: too late" in str(error)
    assert "firewall" in error.remedy
    assert "programs of this host" in meeting_error(Job(("x",), ()), TimeoutError("too late")).remedy


def test_an_address_that_cannot_be_resolved_is_reported() -> None:
    job = Job(("x",), (), num_nodes=2, master_addr="no-such-host.invalid")
    with pytest.raises(LaunchError, match="cannot be resolved"):
        connect(job, resolve_timeout_s=0)
