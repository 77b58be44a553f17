"""Topology and binding, as functions of made-up kernel files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accelerator.launch.binding import threads_per_rank
from accelerator.launch.topology import read_topology
from op_builder.system.cgroups import HostFiles
from tests.support.kernel_files import Made, deal, read_made

TWO = Made(sockets=2, cores=16, threads=2)
FLAT = Made(sockets=2, cores=8, memory_only=1)
MAX = "Intel(R) Xeon(R) CPU Max 9480"
FLAT_SNC = Made(sockets=2, cores=16, snc=4, memory_only=4, model=MAX)
SNC = Made(sockets=2, cores=8, snc=2)
PAIRED = Made(cores=2, threads=4, adjacent=True)

# fmt: off
CASES = [
    ("hyper-threads stay free", Made(threads=2), 2, None, "0-1 @0 any; 2-3 @0 any x2"),
    ("what does not divide stays free", Made(cores=7), 2, None, "0-2 @0 any; 3-5 @0 any x3"),
    ("three ranks on two sockets: the second crosses, or a quarter would idle", TWO, 3, None,
     "0-9 @0 bind 0; 10-19 @0-1 any; 20-29 @1 bind 1 x10"),
    ("seven ranks on two sockets: none crosses, an eighth idles", TWO, 7, None,
     "; ".join(f"{f}-{f + 3} @{f // 16} bind {f // 16}" for f in range(0, 28, 4)) + " x4"),
    ("sub-NUMA clusters, a rank for each", SNC, 4, None,
     "0-3 @0 bind 0; 4-7 @1 bind 1; 8-11 @2 bind 2; 12-15 @3 bind 3 x4"),
    ("HBM in flat mode, by its bandwidth", replace(FLAT, bandwidths=(200_000, 800_000)), 2, None,
     "0-7 @0 prefer 2; 8-15 @1 prefer 3 x8"),
    ("HBM in flat mode, by the processor's name", replace(FLAT, model=MAX), 2, None,
     "0-7 @0 prefer 2; 8-15 @1 prefer 3 x8"),
    ("HBM in flat mode, a node of it for each sub-NUMA cluster", FLAT_SNC, 8, None,
     "; ".join(f"{4 * r}-{4 * r + 3} @{r} prefer {8 + r}" for r in range(8)) + " x4"),
    ("slow memory without cores (CXL), by its bandwidth", replace(FLAT, bandwidths=(200_000, 30_000), model=MAX), 2,
     None, "0-7 @0 prefer 0; 8-15 @1 prefer 1 x8"),
    ("memory without cores of an ordinary processor", FLAT, 2, None, "0-7 @0 prefer 0; 8-15 @1 prefer 1 x8"),
    ("more ranks than cores", Made(cores=2, threads=2), 3, None, "0 @0 any; 1 @0 any; 2 @0 any x1"),
    ("half a core with four threads for each", PAIRED, 4, None, "0-1 @0 any; 2-3 @0 any; 4-5 @0 any; 6-7 @0 any x2"),
    ("offline CPUs", Made(threads=2, offline=(0, 5)), 2, None, "1-2 @0 any; 3-4 @0 any x2"),
    ("cpuset of a container", Made(sockets=2, cores=8, cpuset="4-11"), 2, None, "4-7 @0 bind 0; 8-11 @1 bind 1 x4"),
    ("cpuset of one core with two threads", Made(threads=2, cpuset="0,4"), 2, None, "0 @0 any; 4 @0 any x1"),
    ("cpuset of only second threads", Made(threads=2, cpuset="4-7"), 2, None, "4-5 @0 any; 6-7 @0 any x2"),
    ("uneven cpuset: a rank crosses rather than a quarter idles", Made(sockets=2, cores=8, cpuset="0-4,8-10"), 2, None,
     "0-3 @0 bind 0; 4,8-10 @0-1 any x4"),
    ("the cpuset allows one node's memory", Made(sockets=2, cores=4, mems="1"), 2, None, "0-3 @0 any; 4-7 @1 any x4"),
    ("cores without memory of their own", Made(sockets=3, cores=2, memoryless=(1,)), 3, None,
     "0-1 @0 bind 0; 2-3 @1 prefer 0,2; 4-5 @2 bind 2 x2"),
    ("a quota of time", Made(cores=64, quota="800000 100000"), 2, None, "0-31 @0 any; 32-63 @0 any x4"),
    ("a quota below one core", Made(quota="50000 100000"), 2, None, "0-1 @0 any; 2-3 @0 any x1"),
    ("no NUMA in the kernel", Made(numa=False), 2, None, "0-1 @ any; 2-3 @ any x2"),
    ("a list leaves cores to daemons", TWO, 2, "1-15,17-31", "1-15 @0 bind 0; 17-31 @1 bind 1 x15"),
    ("a list that names hyper-threads gets them, core by core", Made(threads=2), 2, "0-7",
     "0-1,4-5 @0 any; 2-3,6-7 @0 any x4"),
]
# fmt: on


@pytest.mark.parametrize(("made", "ranks", "listed", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_ranks_get(tmp_path: Path, made: Made, ranks: int, listed: str | None, expected: str) -> None:
    assert deal(read_made(tmp_path, made), ranks, listed) == expected


def test_the_affinity_mask_is_never_exceeded(tmp_path: Path) -> None:
    topology = read_made(tmp_path, TWO, affinity={2, 3, 34, 35, 20, 21})
    assert topology.allowed_cpus == {2, 3, 20, 21, 34, 35}
    assert deal(topology, 2) == "2-3 @0 bind 0; 20-21 @1 bind 1 x2"


def test_without_kernel_files_the_cpus_are_those_of_the_mask(tmp_path: Path) -> None:
    assert deal(read_topology(HostFiles(tmp_path, tmp_path), affinity={3, 5}), 2) == "3 @ any; 5 @ any x1"


@pytest.mark.parametrize(
    ("made", "ranks", "threads"),
    [(TWO, 2, 16), (TWO, 5, 6), (TWO, 99, 1), (replace(TWO, quota="400000 100000"), 2, 2), (Made(cpuset="0-1"), 1, 2)],
)
def test_unbound_ranks_share_the_cores_by_number(tmp_path: Path, made: Made, ranks: int, threads: int) -> None:
    assert threads_per_rank(read_made(tmp_path, made), ranks) == threads
