"""Topology and binding over the recorded files of machines; ``recorded/README.md`` says which and whose.

The counts are hwloc's for the same files. Where the two differ, the row says why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelerator.launch.binding import parse_core_list, plan_binding
from accelerator.launch.topology import read_topology
from op_builder.system.cgroups import HostFiles, parse_index_list
from tests.support.kernel_files import checked_bindings, deal, write_files

RECORDED = json.loads((Path(__file__).resolve().parent / "recorded" / "machines.json").read_text())
AFFINITY = {"opteron865_8x2": "0-6,12-15"}  # of the job that recorded it

# Sockets, NUMA nodes, cores and CPUs that the job may use.
COUNTS = {
    "kunpeng920_2x64": (2, 4, 128, 128),
    # hwloc's own output is of a part of it that its files do not show; its name for the machine is not.
    "opteron6134_4x8": (4, 8, 32, 32),
    # Two CPUs of a module share its floating-point units, and the kernel calls them siblings: to the kernel and us a
    # core; hwloc counts 64.
    "opteron6276_4x16": (4, 8, 32, 64),
    # hwloc shows a seventh socket, of which the job may use only the memory.
    "opteron865_8x2": (6, 6, 10, 10),
    "opteron_4x12_sparse_nodes": (4, 8, 48, 48),
    # The kernel knows no sockets (-1): one to us, one for each core to hwloc.
    "power7_64x4": (1, 8, 64, 256),
    "power9_gpu_memory": (2, 2, 8, 32),
    "xeon2680_offline_node0": (2, 1, 17, 17),
    "xeon4108_2x8x2": (2, 2, 16, 32),
    "xeon4870_4x10": (4, 4, 40, 40),
    # hwloc takes eight nodes with the same CPUs for a firmware's mistake, and drops them.
    "xeon5472_fake_numa": (2, 8, 8, 8),
    "xeon_16x6": (16, 4, 96, 96),
    "knights_landing_snc4_hybrid": (1, 4, 16, 64),
    "cascade_lake_memory_nodes": (2, 4, 8, 8),
}

# fmt: off
# Those whose cores or memory are not as on the invented machines.
BINDINGS = [
    ("opteron_4x12_sparse_nodes", 8,
     "; ".join(f"{6 * r}-{6 * r + 5} @{n} bind {n}" for r, n in enumerate((0, 1, 2, 33, 34, 45, 72, 73))) + " x6"),
    ("power9_gpu_memory", 2, "0,4,8,12 @0 prefer 0; 88,92,96,100 @8 prefer 8 x4"),
    ("xeon2680_offline_node0", 1, "4-20 @1 any x17"),
    ("xeon4870_4x10", 4, "; ".join(f"{','.join(map(str, range(r, 40, 4)))} @{r} bind {r}" for r in range(4)) + " x10"),
    ("xeon5472_fake_numa", 2, "0,2,4,6 @0-7 any; 1,3,5,7 @0-7 any x4"),
    # The cores' own nodes have no memory: the nearest that have some are preferred.
    ("cascade_lake_memory_nodes", 4, "0-1 @0 prefer 5; 4-5 @2 prefer 6; 2-3 @1 prefer 8; 6-7 @3 prefer 9 x2"),
]
# fmt: on


def write_recorded(directory: Path, name: str, **changes: str) -> HostFiles:
    """The files of a machine, with ``changes`` (``proc_cpuinfo``)."""
    files = {}
    for pattern, texts in RECORDED[name].items():
        by_numbers = texts if isinstance(texts, dict) else {"0": texts}
        for numbers, text in by_numbers.items():
            files |= {pattern.replace("*", str(number)): text for number in parse_index_list(numbers)}
    return write_files(directory, files | {path.replace("_", "/"): text for path, text in changes.items()})


@pytest.mark.parametrize("name", COUNTS)
def test_counts_match_hwloc_and_ranks_share_no_cores(tmp_path: Path, name: str) -> None:
    affinity = parse_core_list(AFFINITY[name]) if name in AFFINITY else None
    topology = read_topology(write_recorded(tmp_path, name), affinity)
    usable = [set(core.cpus) & topology.allowed_cpus for core in topology.cores]
    sockets = {core.package for core in topology.cores if topology.allowed_cpus & set(core.cpus)}
    nodes = {node.number for node in topology.numa_nodes if node.cpus & topology.allowed_cpus}
    cores = [cpus for cpus in usable if cpus]
    assert (len(sockets), len(nodes), len(cores), len(topology.allowed_cpus)) == COUNTS[name]
    for ranks in {1, 2, 3, len(nodes)}:
        used = {cpu for binding in checked_bindings(topology, ranks) for cpu in binding.cpus}
        assert used <= {min(cpus) for cpus in cores}, "hyper-threads stay free while there are cores"
        assert len(used) >= len(cores) // ranks * ranks * 7 / 8, "an eighth, and what does not divide, may idle"


@pytest.mark.parametrize(("name", "ranks", "expected"), BINDINGS, ids=[case[0] for case in BINDINGS])
def test_ranks_get(tmp_path: Path, name: str, ranks: int, expected: str) -> None:
    assert deal(read_topology(write_recorded(tmp_path, name), None), ranks) == expected


def test_fast_memory_of_each_cluster_is_preferred(tmp_path: Path) -> None:
    """The recorded processor's name is a number; by the name that such ones are sold under, its MCDRAM is known."""
    sold_as = "model name\t: Intel(R) Xeon Phi(TM) CPU 7210 @ 1.30GHz\n"
    topology = read_topology(write_recorded(tmp_path, "knights_landing_snc4_hybrid", proc_cpuinfo=sold_as), None)
    assert [node.number for node in topology.numa_nodes if node.is_hbm] == [4, 5, 6, 7]
    # The pairs are those that hwloc finds.
    assert [binding.memory.nodes for binding in plan_binding(topology, 4)] == [(7,), (4,), (5,), (6,)]
