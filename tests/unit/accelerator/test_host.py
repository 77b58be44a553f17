"""NUMA nodes, control groups and resident memory, on made-up trees of kernel files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accelerator.host import HostResources
from op_builder.system.cgroups import HostFiles
from tests.support.machines import WriteFiles, numa_tree
from tests.support.processes import fork, wait_for

V2 = {"proc/self/cgroup": "0::/job/step\n"}
V1 = {"proc/self/cgroup": "5:cpuset,cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n"}
HYBRID = {"proc/self/cgroup": "9:cpuset:/pod\n8:memory:/pod\n1:name=systemd:/pod\n0::/pod\n"}
COLON = {"proc/self/cgroup": "0::/a:b\n"}
TWO_SOCKETS = numa_tree({0: "0-15", 1: "16-31"})
THREE_NODES = numa_tree({0: "0-3", 1: "4-7", 2: "8-11"})
INNER = {"sys/fs/cgroup/cpuset/docker/abc/cpuset.cpus": "0-3", "sys/fs/cgroup/cpuset/docker/cpuset.cpus": "0-31"}
SOME_OF_TWO = {"sys/fs/cgroup/job/step/cpuset.cpus.effective": "3,8-9\n"}

NUMA = [
    ("more than nine nodes", numa_tree({n: f"{2 * n}-{2 * n + 1}" for n in range(12)}), 12),
    ("HBM in flat mode", numa_tree({0: "0-55", 1: "56-111", 2: "", 3: ""}), 2),
    ("fake NUMA on two sockets", numa_tree({0: "0-7", 1: "0-7", 2: "8-15", 3: "8-15"}), 2),
    ("an offline node", numa_tree({0: "0-7", 1: "8-15"}, online="0"), 1),
    ("memory between two sockets (CXL)", numa_tree({0: "0-7", 1: "", 2: "8-15"}), 2),
    ("nothing at all", {}, 1),
    ("cpuset v2 hides a node", {**TWO_SOCKETS, **V2, "sys/fs/cgroup/job/step/cpuset.cpus.effective": "16-19"}, 1),
    ("cpuset v2 of an ancestor", {**TWO_SOCKETS, **V2, "sys/fs/cgroup/job/cpuset.cpus.effective": "0-3"}, 1),
    ("cpuset v1 hides a node", {**TWO_SOCKETS, **V1, "sys/fs/cgroup/cpuset/docker/abc/cpuset.effective_cpus": "0"}, 1),
    ("cpuset v1, innermost of two", {**TWO_SOCKETS, **V1, **INNER}, 1),
    ("cpuset of a hybrid", {**TWO_SOCKETS, **HYBRID, "sys/fs/cgroup/cpuset/pod/cpuset.cpus": "20-23"}, 1),
    ("cpuset leaves some of each of two nodes of three", {**THREE_NODES, **V2, **SOME_OF_TWO}, 2),
    ("cpuset of cores that no node lists", {**TWO_SOCKETS, **V2, "sys/fs/cgroup/cpuset.cpus.effective": "64-71"}, 1),
    ("a group with a colon in its name", {**TWO_SOCKETS, **COLON, "sys/fs/cgroup/a:b/cpuset.cpus.effective": "0"}, 1),
    ("an empty cpuset file", {**TWO_SOCKETS, **V2, "sys/fs/cgroup/job/step/cpuset.cpus.effective": "\n"}, 2),
]


@pytest.mark.parametrize(("tree", "count"), [row[1:] for row in NUMA], ids=[row[0] for row in NUMA])
def test_numa_nodes_with_usable_cores_count(host_files: WriteFiles, tree: dict[str, str], count: int) -> None:
    assert HostResources(host_files(tree)).numa_node_count() == count


GIB = 1 << 30
ROOT, V1_ROOT, STEP = "sys/fs/cgroup", "sys/fs/cgroup/memory", "sys/fs/cgroup/job/step"
ABC = f"{V1_ROOT}/docker/abc"
V1_FULL = {f"{ABC}/memory.limit_in_bytes": 2 * GIB, f"{ABC}/memory.usage_in_bytes": 2 * GIB}
CACHE = f"anon {4 * GIB}\ninactive_file {GIB}\nactive_file 5\n"
# fmt: off
# Of a machine with 64 GiB, 48 of them available: the group, its files, its total and its available memory in GiB.
ROOM: list[tuple[str, dict[str, str], dict[str, object], int, int]] = [
    ("no cgroups", {}, {}, 64, 48),
    ("v2 without a limit", V2, {f"{STEP}/memory.max": "max\n"}, 64, 48),
    ("v2", V2, {f"{STEP}/memory.max": f"{4 * GIB}\n"}, 4, 4),
    ("v2, an ancestor", V2, {f"{STEP}/memory.max": 8 * GIB, f"{ROOT}/job/memory.max": 2 * GIB}, 2, 2),
    ("v2, the outermost", V2, {f"{STEP}/memory.max": "max", f"{ROOT}/memory.max": 6 * GIB}, 6, 6),
    ("v2, throttled", V2, {f"{ROOT}/job/memory.max": 8 * GIB, f"{ROOT}/job/memory.high": 7 * GIB}, 7, 7),
    ("v2 in a container", {"proc/self/cgroup": "0::/\n"}, {f"{ROOT}/memory.max": GIB}, 1, 1),
    ("v2 from outside the namespace", {"proc/self/cgroup": "0::/../../other\n"}, {f"{ROOT}/memory.max": GIB}, 1, 1),
    ("another job's limit", V2, {f"{ROOT}/other/memory.max": GIB}, 64, 48),
    ("v1 without a limit", V1, {f"{ABC}/memory.limit_in_bytes": 9223372036854771712}, 64, 48),
    ("v1 in a container", V1, {f"{V1_ROOT}/memory.limit_in_bytes": 3 * GIB}, 3, 3),
    ("hybrid", V2, {f"{ROOT}/unified/job/memory.max": GIB}, 1, 1),
    ("hybrid, limits in both", HYBRID,
     {f"{V1_ROOT}/pod/memory.limit_in_bytes": 4 * GIB, f"{ROOT}/unified/pod/memory.max": 3 * GIB}, 3, 3),
    ("a limit above what is left", V2, {f"{ROOT}/job/memory.max": 60 * GIB, f"{ROOT}/job/memory.current": 0}, 60, 48),
    ("cache that can be dropped is free", V2,
     {f"{STEP}/memory.max": 8 * GIB, f"{STEP}/memory.current": 6 * GIB, f"{STEP}/memory.stat": CACHE}, 8, 3),
    ("v1 counts descendants", V1,
     {**V1_FULL, f"{ABC}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n"}, 2, 1),
    ("never negative", V1, {**V1_FULL, f"{ABC}/memory.usage_in_bytes": 9 * GIB}, 2, 0),
    ("siblings fill an ancestor whose limit is the wider one", V2,
     {f"{STEP}/memory.max": 4 * GIB, f"{STEP}/memory.current": GIB,
      f"{ROOT}/job/memory.max": 16 * GIB, f"{ROOT}/job/memory.current": 15 * GIB}, 4, 1),
]
# fmt: on


@pytest.mark.usefixtures("fake_memory")
@pytest.mark.parametrize(("groups", "files", "total", "available"), [r[1:] for r in ROOM], ids=[r[0] for r in ROOM])
def test_memory_is_what_the_cgroups_leave(
    host_files: WriteFiles, groups: dict[str, str], files: dict[str, object], total: int, available: int
) -> None:
    host = HostResources(host_files({**groups, **{name: str(text) for name, text in files.items()}}))
    assert (host.total_memory(), host.available_memory()) == (total * GIB, available * GIB)


# Resident memory -------------------------------------------------------------------------


def test_without_a_reset_of_the_kernels_mark_the_peak_is_the_largest_value_read(host_files: WriteFiles) -> None:
    memory = HostResources(host_files({"proc/self/status": f"VmHWM:\t {1 << 30} kB\n"}))
    memory.reset_peak_rss()
    assert 0 < memory.peak_rss() < 1 << 40


def test_without_kernel_files_a_peak_is_reported(tmp_path: Path) -> None:
    memory = HostResources(HostFiles(tmp_path, tmp_path))
    assert memory.peak_rss() >= memory.rss() * 0.5 > 0


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel lets no process reset its peak")
def test_the_peak_includes_memory_freed_between_two_calls() -> None:
    memory = HostResources(HostFiles())
    memory.reset_peak_rss()
    base = memory.peak_rss()
    block = bytearray(64 << 20)
    block[:: 1 << 12] = b"x" * len(range(0, len(block), 1 << 12))  # touch every page
    del block
    assert memory.peak_rss() >= base + (48 << 20)
    memory.reset_peak_rss()
    assert memory.peak_rss() < base + (48 << 20)


def test_a_forked_child_does_not_report_its_parents_peak(host_files: WriteFiles) -> None:
    memory = HostResources(host_files({"proc/self/status": f"VmHWM:\t {1 << 30} kB\n"}))
    assert memory.peak_rss() == 1 << 40
    host_files({"proc/self/status": "VmHWM:\t 9 kB\n"})  # the child's own

    def check() -> None:
        assert memory.peak_rss() < 1 << 40

    assert wait_for([fork(check)]) == [0]
