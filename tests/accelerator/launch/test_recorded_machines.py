"""Topology and binding over the recorded files of machines; ``recorded/README.md`` says which and whose.

The counts are hwloc's for the same files. Where the two differ, the row says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from trees import told

from accelerator.launch.binding import parse_core_list, plan_binding
from accelerator.launch.topology import Topology, read_caches, read_topology
from op_builder.system.cgroups import HostFiles

Write = Callable[[dict[str, str]], HostFiles]

RECORDED = Path(__file__).resolve().parent / "recorded"
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Machine:
    """What hwloc says of one recording, for the job that recorded it (``affinity``)."""

    file: str
    sockets: int
    nodes: int
    cores: int
    cpus: int
    affinity: str | None = None


MACHINES = [
    Machine("kunpeng920_2x64", 2, 4, 128, 128),
    # hwloc's own output is of a part of it that its files do not tell of; its name for the machine is.
    Machine("opteron6134_4x8", 4, 8, 32, 32),
    # Two CPUs of a module share its floating-point units, and the kernel calls them siblings: to the kernel and us a
    # core; hwloc counts 64.
    Machine("opteron6276_4x16", 4, 8, 32, 64),
    # hwloc shows a seventh socket, of which the job may use the memory alone.
    Machine("opteron865_8x2", 6, 6, 10, 10, affinity="0-6,12-15"),
    Machine("opteron_4x12_sparse_nodes", 4, 8, 48, 48),
    # The kernel tells no sockets (-1): one to us, one for each core to hwloc.
    Machine("power7_64x4", 1, 8, 64, 256),
    Machine("power9_gpu_memory", 2, 2, 8, 32),
    Machine("xeon2680_offline_node0", 2, 1, 17, 17),
    Machine("xeon4108_2x8x2", 2, 2, 16, 32),
    Machine("xeon4870_4x10", 4, 4, 40, 40),
    # hwloc takes eight nodes with the same CPUs for a firmware's mistake, and drops them.
    Machine("xeon5472_fake_numa", 2, 8, 8, 8),
    Machine("xeon_16x6", 16, 4, 96, 96),
    Machine("knights_landing_snc4_hybrid", 1, 4, 16, 64),
    Machine("cascade_lake_memory_nodes", 2, 4, 8, 8),
]


def files_of(write: Write, recorded: str) -> HostFiles:
    return write(json.loads((RECORDED / f"{recorded}.json").read_text()))


def read(write: Write, machine: Machine) -> Topology:
    affinity = None if machine.affinity is None else parse_core_list(machine.affinity)
    return read_topology(files_of(write, machine.file), affinity)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.file)
def test_counts_are_those_that_hwloc_finds(host_files: Write, machine: Machine) -> None:
    topology = read(host_files, machine)
    usable = [core for core in topology.cores if topology.allowed & set(core.cpus)]
    nodes = {node.number for node in topology.nodes if node.cpus & topology.allowed}
    found = (len({core.package for core in usable}), len(nodes), len(usable), len(topology.allowed))
    assert found == (machine.sockets, machine.nodes, machine.cores, machine.cpus)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.file)
def test_ranks_get_cores_of_their_own_and_memory_that_is_there(host_files: Write, machine: Machine) -> None:
    topology = read(host_files, machine)
    for ranks in {1, 2, 3, machine.nodes}:
        check_bindings(topology, ranks)


def check_bindings(topology: Topology, ranks: int) -> None:
    bindings = plan_binding(topology, ranks)
    used = [cpu for binding in bindings for cpu in binding.cpus]
    assert len(used) == len(set(used))
    assert set(used) <= topology.allowed
    first_threads = [
        min(set(core.cpus) & topology.allowed) for core in topology.cores if set(core.cpus) & topology.allowed
    ]
    assert set(used) <= set(first_threads), "hyper-threads stay free as long as there are cores"
    memory = {node.number for node in topology.memory_nodes}
    for binding in bindings:
        assert set(binding.memory.nodes) <= memory
        assert binding.threads == len(binding.cpus)


BINDINGS = [
    ("kunpeng920_2x64", 4, None, [f"{32 * r}-{32 * r + 31} @{r} bind {r} x32" for r in range(4)]),
    ("opteron6134_4x8", 2, "0-5", ["0-2 @0 bind 0 x3", "3-5 @0-1 bind 0-1 x3"]),
    (
        "opteron_4x12_sparse_nodes",
        8,
        None,
        [f"{6 * r}-{6 * r + 5} @{n} bind {n} x6" for r, n in enumerate((0, 1, 2, 33, 34, 45, 72, 73))],
    ),
    ("power9_gpu_memory", 2, None, ["0,4,8,12 @0 prefer 0 x4", "88,92,96,100 @8 prefer 8 x4"]),
    ("xeon2680_offline_node0", 1, None, ["4-20 @1 any x17"]),
    ("xeon4108_2x8x2", 2, None, ["0-7 @0 bind 0 x8", "8-15 @1 bind 1 x8"]),
    (
        "xeon4870_4x10",
        4,
        None,
        [f"{','.join(str(cpu) for cpu in range(r, 40, 4))} @{r} bind {r} x10" for r in range(4)],
    ),
    ("xeon5472_fake_numa", 2, None, ["0,2,4,6 @0-7 any x4", "1,3,5,7 @0-7 any x4"]),
    # The cores' own nodes have no memory: the nearest that have some are preferred.
    (
        "cascade_lake_memory_nodes",
        4,
        None,
        ["0-1 @0 prefer 5 x2", "4-5 @2 prefer 6 x2", "2-3 @1 prefer 8 x2", "6-7 @3 prefer 9 x2"],
    ),
]


@pytest.mark.parametrize(("recorded", "ranks", "affinity", "expected"), BINDINGS, ids=[b[0] for b in BINDINGS])
def test_ranks_get(host_files: Write, recorded: str, ranks: int, affinity: str | None, expected: list[str]) -> None:
    topology = read(host_files, Machine(recorded, 0, 0, 0, 0, affinity))
    assert told(plan_binding(topology, ranks)) == expected


def test_fast_memory_of_each_cluster_is_preferred(host_files: Write) -> None:
    """The recorded processor's name is a number; with the name that such ones are sold by, its MCDRAM is known."""
    files = json.loads((RECORDED / "knights_landing_snc4_hybrid.json").read_text())
    files["proc/cpuinfo"] = "model name\t: Intel(R) Xeon Phi(TM) CPU 7210 @ 1.30GHz\n"
    topology = read_topology(host_files(files), None)
    assert [node.number for node in topology.nodes if node.is_hbm] == [4, 5, 6, 7]
    # The pairs are those that hwloc finds.
    assert [binding.memory.nodes for binding in plan_binding(topology, 4)] == [(7,), (4,), (5,), (6,)]


def test_caches_of_a_recorded_machine(host_files: Write) -> None:
    files = files_of(host_files, "xeon4108_2x8x2")
    caches = read_caches(files, read_topology(files, None))
    kinds = [(cache.level, cache.kind, cache.size_bytes >> 10) for cache in caches]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        (1, "Data", 32): 16,
        (1, "Instruction", 32): 16,
        (2, "Unified", 1024): 16,
        (3, "Unified", 11264): 2,
    }


def test_this_machine_can_be_recorded(host_files: Write) -> None:
    """What `record.py` writes of the machine that runs this is read as the machine itself is."""
    texts = json.loads(
        subprocess.run(
            [sys.executable, RECORDED / "record.py"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ).stdout
    )
    recorded, here = read_topology(host_files(texts), None), read_topology(HostFiles(), None)
    assert (recorded.cores, recorded.nodes) == (here.cores, here.nodes)
