"""Topology and binding, as functions of made-up kernel files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelerator.errors import BindingError
from accelerator.launch.binding import parse_core_list, plan_binding, threads_per_rank
from accelerator.launch.topology import Core, Node, Topology, format_list, read_topology
from op_builder.system.cgroups import HostFiles
from tests.support.kernel_files import Made, deal, read_made

TWO = Made(sockets=2, cores=16, threads=2)
FLAT = Made(sockets=2, cores=8, memory_only=1)
MAX = "Intel(R) Xeon(R) CPU Max 9480"
FLAT_SNC = Made(sockets=2, cores=16, snc=4, memory_only=4, model=MAX)
EIGHT = Made(sockets=8, cores=4)
SNC = Made(sockets=2, cores=8, snc=2)
PAIRED = Made(cores=2, threads=4, adjacent=True)

# fmt: off
CASES = [
    ("one rank, one node", Made(), 1, None, "0-3 @0 any x4"),
    ("hyper-threads stay free", Made(threads=2), 2, None, "0-1 @0 any; 2-3 @0 any x2"),
    ("what does not divide stays free", Made(cores=7), 2, None, "0-2 @0 any; 3-5 @0 any x3"),
    ("a rank per socket", TWO, 2, None, "0-15 @0 bind 0; 16-31 @1 bind 1 x16"),
    ("two ranks per socket", TWO, 4, None, "0-7 @0 bind 0; 8-15 @0 bind 0; 16-23 @1 bind 1; 24-31 @1 bind 1 x8"),
    ("three ranks on two sockets: the second crosses, or a quarter would idle", TWO, 3, None,
     "0-9 @0 bind 0; 10-19 @0-1 any; 20-29 @1 bind 1 x10"),
    ("seven ranks on two sockets: none crosses, an eighth idles", TWO, 7, None,
     "; ".join(f"{f}-{f + 3} @{f // 16} bind {f // 16}" for f in range(0, 28, 4)) + " x4"),
    ("one rank on two sockets", TWO, 1, None, "0-31 @0-1 any x32"),
    ("four ranks on eight sockets", EIGHT, 4, None,
     "0-7 @0-1 bind 0-1; 8-15 @2-3 bind 2-3; 16-23 @4-5 bind 4-5; 24-31 @6-7 bind 6-7 x8"),
    ("sub-NUMA clusters, a rank for each", SNC, 4, None,
     "0-3 @0 bind 0; 4-7 @1 bind 1; 8-11 @2 bind 2; 12-15 @3 bind 3 x4"),
    ("sub-NUMA clusters, a rank per socket", SNC, 2, None, "0-7 @0-1 bind 0-1; 8-15 @2-3 bind 2-3 x8"),
    ("HBM in flat mode, by its bandwidth", replace(FLAT, bandwidths=(200_000, 800_000)), 2, None,
     "0-7 @0 prefer 2; 8-15 @1 prefer 3 x8"),
    ("HBM in flat mode, by the processor's name", replace(FLAT, model=MAX), 2, None,
     "0-7 @0 prefer 2; 8-15 @1 prefer 3 x8"),
    ("HBM in flat mode, a node of it for each sub-NUMA cluster", FLAT_SNC, 8, None,
     "; ".join(f"{4 * r}-{4 * r + 3} @{r} prefer {8 + r}" for r in range(8)) + " x4"),
    ("HBM in flat mode, two clusters for each rank", FLAT_SNC, 4, None,
     "0-7 @0-1 prefer 8-9; 8-15 @2-3 prefer 10-11; 16-23 @4-5 prefer 12-13; 24-31 @6-7 prefer 14-15 x8"),
    ("HBM in flat mode, one rank", replace(FLAT, model=MAX), 1, None, "0-15 @0-1 prefer 2-3 x16"),
    ("slow memory without cores (CXL), by its bandwidth", replace(FLAT, bandwidths=(200_000, 30_000), model=MAX), 2,
     None, "0-7 @0 prefer 0; 8-15 @1 prefer 1 x8"),
    ("memory without cores of an ordinary processor", FLAT, 2, None, "0-7 @0 prefer 0; 8-15 @1 prefer 1 x8"),
    ("HBM as a cache is no node", Made(sockets=2, cores=8, model=MAX), 2, None, "0-7 @0 bind 0; 8-15 @1 bind 1 x8"),
    ("fake NUMA", Made(cores=8, fake=4), 2, None, "0-3 @0-3 any; 4-7 @0-3 any x4"),
    ("more ranks than cores", Made(cores=2, threads=2), 3, None, "0 @0 any; 1 @0 any; 2 @0 any x1"),
    ("as many ranks as hyper-threads", Made(cores=2, threads=2, adjacent=True), 4, None,
     "0 @0 any; 2 @0 any; 1 @0 any; 3 @0 any x1"),
    ("half a core with four threads for each", PAIRED, 4, None, "0-1 @0 any; 2-3 @0 any; 4-5 @0 any; 6-7 @0 any x2"),
    ("offline CPUs", Made(threads=2, offline=(0, 5)), 2, None, "1-2 @0 any; 3-4 @0 any x2"),
    ("all CPUs of a socket offline", Made(sockets=2, cores=2, offline=(2, 3)), 2, None,
     "0 @0 prefer 0; 1 @0 prefer 0 x1"),
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
    ("ARM: odd numbers of sockets, no hyper-threads", Made(sockets=2, cores=80, packages=(36, 3180)), 2, None,
     "0-79 @0 bind 0; 80-159 @1 bind 1 x80"),
    ("ARM: firmware has no sockets", Made(sockets=2, cores=4, packages=(-1, -1)), 2, None,
     "0-3 @0 bind 0; 4-7 @1 bind 1 x4"),
    ("no NUMA in the kernel", Made(numa=False), 2, None, "0-1 @ any; 2-3 @ any x2"),
    ("a list leaves cores to daemons", TWO, 2, "1-15,17-31", "1-15 @0 bind 0; 17-31 @1 bind 1 x15"),
    ("a list that names hyper-threads gets them, core by core", Made(threads=2), 2, "0-7",
     "0-1,4-5 @0 any; 2-3,6-7 @0 any x4"),
    ("a list on the second socket alone", TWO, 2, "16-31", "16-23 @1 bind 1; 24-31 @1 bind 1 x8"),
]
# fmt: on


@pytest.mark.parametrize(("made", "ranks", "listed", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_ranks_get(tmp_path: Path, made: Made, ranks: int, listed: str | None, expected: str) -> None:
    assert deal(read_made(tmp_path, made), ranks, listed) == expected


def test_the_affinity_mask_is_never_exceeded(tmp_path: Path) -> None:
    topology = read_made(tmp_path, TWO, affinity={2, 3, 34, 35, 20, 21})
    assert topology.allowed_cpus == {2, 3, 20, 21, 34, 35}
    assert deal(topology, 2) == "2-3 @0 bind 0; 20-21 @1 bind 1 x2"


def test_cores_are_identified_by_siblings_not_by_number(tmp_path: Path) -> None:
    """Both sockets number their cores from 0."""
    topology = read_made(tmp_path, Made(sockets=2, cores=2, threads=2))
    assert topology.cores == (Core((0, 4), 0), Core((1, 5), 0), Core((2, 6), 1), Core((3, 7), 1))


def test_without_kernel_files_the_cpus_are_those_of_the_mask(tmp_path: Path) -> None:
    assert deal(read_topology(HostFiles(tmp_path, tmp_path), affinity={3, 5}), 2) == "3 @ any; 5 @ any x1"


@pytest.mark.parametrize("text", ["", "a", "0-", "0-x", "1-0", "0;1", "-1"])
def test_an_invalid_core_list_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BindingError, match="0-51,56-107"):
        parse_core_list(text)


def test_listed_cpus_that_are_not_allowed_are_reported(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match=r"may not use: 0-1,3,6; it may use 2,4-5"):
        deal(read_made(tmp_path, Made(cores=8, cpuset="2-5", offline=(3,))), 2, "0-6")


def test_more_ranks_than_cpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match=r"5 ranks cannot be bound to 4 CPUs \(0-3\)"):
        deal(read_made(tmp_path, Made(cores=2, threads=2)), 5)


@pytest.mark.parametrize(
    ("made", "ranks", "threads"),
    [(TWO, 2, 16), (TWO, 5, 6), (TWO, 99, 1), (replace(TWO, quota="400000 100000"), 2, 2), (Made(cpuset="0-1"), 1, 2)],
)
def test_unbound_ranks_share_the_cores_by_number(tmp_path: Path, made: Made, ranks: int, threads: int) -> None:
    assert threads_per_rank(read_made(tmp_path, made), ranks) == threads


@pytest.mark.parametrize("numbers", [(), (0,), (0, 1, 2), (0, 2), (1, 2, 3, 7, 9, 10)])
def test_lists_have_the_kernels_format(numbers: tuple[int, ...]) -> None:
    text = format_list(numbers)
    assert (sorted(parse_core_list(text)) if text else []) == list(numbers)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Topology, int]:
    """A machine of any shape, and a number of ranks that its CPUs suffice for."""
    threads = draw(st.sampled_from([1, 2, 4]))
    places = [(socket, part) for socket in range(draw(st.integers(1, 4))) for part in range(draw(st.integers(1, 3)))]
    cores, of_place = [], {place: [] for place in places}
    for place in places:
        for _ in range(draw(st.integers(0, 6))):
            first = len(cores) * threads
            cores.append(Core(tuple(range(first, first + threads)), place[0]))
            of_place[place] += cores[-1].cpus
    cores = cores or [Core(tuple(range(threads)), 0)]
    memory_only = draw(st.integers(0, 2))
    cpus_of_nodes = [frozenset(cpus) for cpus in of_place.values() for _ in range(draw(st.sampled_from([1, 1, 2])))]
    numbers = range(len(cpus_of_nodes) + memory_only)
    distance = st.sampled_from([11, 12, 21, 31])
    nodes = tuple(
        Node(
            number,
            cpus_of_nodes[number] if number < len(cpus_of_nodes) else frozenset(),
            draw(st.sampled_from([0, 1 << 30, None])),
            {other: 10 if other == number else draw(distance) for other in numbers},
            is_hbm=number >= len(cpus_of_nodes) and draw(st.booleans()),
        )
        for number in numbers
    )
    everything = sorted(cpu for core in cores for cpu in core.cpus)
    allowed = draw(st.sets(st.sampled_from(everything), min_size=1))
    memory = draw(st.none() | st.sets(st.sampled_from(numbers), min_size=1).map(frozenset)) if numbers else None
    quota = draw(st.none() | st.floats(0.1, 64))
    topology = Topology(tuple(cores), draw(st.sampled_from([nodes, ()])), frozenset(allowed), memory, quota, "")
    return topology, draw(st.integers(1, len(allowed)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines(), st.data())
def test_ranks_share_no_cpu_and_stay_on_allowed_cpus(case: tuple[Topology, int], data: st.DataObject) -> None:
    topology, ranks = case
    listed = frozenset(data.draw(st.sets(st.sampled_from(sorted(topology.allowed_cpus)), min_size=ranks)))
    used = [cpu for binding in plan_binding(topology, ranks, listed) for cpu in binding.cpus]
    assert len(used) == len(set(used))
    assert set(used) <= listed
    bindings = plan_binding(topology, ranks)
    used = [cpu for binding in bindings for cpu in binding.cpus]
    assert len(bindings) == ranks
    assert len(used) == len(set(used))
    assert set(used) <= topology.allowed_cpus
    assert len({len(binding.cpus) for binding in bindings}) == 1
    usable = (set(core.cpus) & topology.allowed_cpus for core in topology.cores)
    cores = [cpus for cpus in usable if cpus]
    if ranks <= len(cores):
        assert all(len(core & set(used)) <= 1 for core in cores), "hyper-threads only when cores are not enough"
        assert len(used) >= len(cores) // ranks * ranks * 7 / 8, "an eighth, and what does not divide, may idle"
    assert 1 <= threads_per_rank(topology, ranks, bindings) <= len(bindings[0].cpus)
    memory = {node.number for node in topology.memory_nodes}
    assert all(set(binding.memory.nodes) <= memory for binding in bindings)
