"""The plan for the ranks of one host: bindings, variables, and their description."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from accelerator.launch.binding import RankBinding, parse_core_list, plan_binding, threads_per_rank
from accelerator.launch.environment import THREAD_VARIABLES, check_against_binding, check_threads, visible_devices
from accelerator.launch.hosts import Host
from accelerator.launch.job import Job
from accelerator.launch.topology import Topology, format_list

_MOST_LINES = 16


@dataclass(frozen=True)
class HostPlan:
    """What the ranks of one host get.

    Attributes:
        bindings: of each rank; empty where nothing is bound.
        threads: that each of them should compute with.
        variables: of all of them.
        notes: sentences for the user.
    """

    ranks: int
    bindings: tuple[RankBinding, ...] = ()
    threads: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def thread_variables(self) -> dict[str, str]:
        return {name: self.variables[name] for name in THREAD_VARIABLES if name in self.variables}

    def describe(self, rank: int) -> str:
        """A rank's binding and threads in one line."""
        binding = self.bindings[rank]
        nodes = f" of NUMA node {format_list(binding.numa_nodes)}" if binding.numa_nodes else ""
        threads = assignments(self.thread_variables) or "threads as you set them"
        return f"CPU {format_list(binding.cpus)}{nodes}, memory {binding.memory}, {threads}"

    def lines(self) -> list[str]:
        """What is bound and set, a line for each rank, and the notes."""
        lines = [f"local rank {rank}: {self.describe(rank)}" for rank in range(len(self.bindings))]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = [f"... and {len(lines) - _MOST_LINES} more ranks; --dry_run shows all"]
        if not lines and self.thread_variables:
            lines.append(f"{plural(self.ranks, 'unbound rank')}, {assignments(self.thread_variables)} for each")
        return [*lines, *self.notes]


def plan_host(job: Job, host: Host, topology: Topology, given: Mapping[str, str]) -> HostPlan:
    """The plan for the chosen slots of a host.

    Slots that are not chosen keep their share of the cores, so that two launches on different slots do not overlap.

    Args:
        given: the variables that the ranks would have otherwise.

    Raises:
        LaunchError: it is not possible as requested.
    """
    ranks = len(host.chosen)
    bindings: tuple[RankBinding, ...] = ()
    if job.bind:
        check_against_binding(given)
        listed = None if job.core_list is None else parse_core_list(job.core_list)
        of_slots = plan_binding(topology, host.slots, listed)
        bindings = tuple(of_slots[slot] for slot in host.chosen)
    threads = threads_per_rank(topology, host.slots if job.bind else ranks, bindings)
    thread_variables, notes = check_threads(threads, given)
    devices = visible_devices(job.device_variables, given, host.chosen)
    return HostPlan(ranks, bindings, threads, {**devices, "LOCAL_SIZE": str(ranks), **thread_variables}, notes)


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def assignments(variables: Mapping[str, str]) -> str:
    """Variables as a shell reads them."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
