"""The plan for the ranks of one host: bindings, variables, and what is to be told of both."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accelerator.launch import environment
from accelerator.launch.binding import RankBinding, parse_core_list, plan_binding, threads_without_binding
from accelerator.launch.hostfile import Host
from accelerator.launch.lists import format_list
from accelerator.launch.topology import Topology

_MOST_LINES = 16


@dataclass(frozen=True)
class BindingRequest:
    """What the command line says of binding: whether, and of which CPUs (in the kernel's list format)."""

    wanted: bool = False
    core_list: str | None = None


@dataclass(frozen=True)
class HostPlan:
    """What the ranks of one host get.

    Attributes:
        bindings: of each rank; empty where nothing is bound.
        variables: for all of them.
        rank_variables: for each of them; empty where nothing is bound.
        notes: sentences for the user.
    """

    ranks: int
    bindings: tuple[RankBinding, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    rank_variables: tuple[dict[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def spec(self) -> dict[str, Any]:
        """For the workers, see :func:`accelerator.launch.worker.worker_command`."""
        ranks = [
            {"cpus": list(binding.cpus), "memory": [binding.memory.mode, list(binding.memory.nodes)]}
            for binding in self.bindings
        ]
        return {"ranks": ranks}

    def variables_of(self, local_rank: int) -> dict[str, str]:
        """All variables that the plan gives a rank."""
        return {**self.variables, **(self.rank_variables[local_rank] if self.rank_variables else {})}

    def lines(self) -> list[str]:
        """What is bound and set, a line for each rank, and the notes."""
        told = [
            f"local rank {rank}: {describe(binding, variables)}"
            for rank, (binding, variables) in enumerate(zip(self.bindings, self.rank_variables, strict=True))
        ]
        if len(told) > _MOST_LINES:
            told = [*told[:_MOST_LINES], f"... and {len(told) - _MOST_LINES} more ranks; --dry_run shows all"]
        threads = {name: self.variables[name] for name in environment.THREAD_VARIABLES if name in self.variables}
        if threads:
            told.append(f"{plural(self.ranks, 'unbound rank')}, {assignments(threads)} for each")
        return [*told, *self.notes]


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def describe(binding: RankBinding, variables: Mapping[str, str]) -> str:
    """A rank's binding and threads in one line."""
    nodes = f" of NUMA node {format_list(binding.nodes)}" if binding.nodes else ""
    memory = f", memory {binding.memory}"
    return f"CPU {format_list(binding.cpus)}{nodes}{memory}, {assignments(variables) or 'threads as you set them'}"


def plan_host(host: Host, request: BindingRequest, topology: Topology, given: Mapping[str, str]) -> HostPlan:
    """The plan for the chosen slots of a host.

    Slots that are not chosen keep their share of the cores, so that two launches on different slots do
    not meet.

    Args:
        given: the variables that the ranks will have otherwise.

    Raises:
        LaunchError: it cannot be done as asked.
    """
    ranks = len(host.chosen)
    variables = {"LOCAL_SIZE": str(ranks)}
    if not request.wanted:
        threads = threads_without_binding(topology, ranks)
        notes = tuple(environment.thread_notes(threads, given))
        return HostPlan(ranks, variables={**variables, **environment.thread_variables(threads, given)}, notes=notes)
    environment.check_against_binding(given)
    listed = None if request.core_list is None else parse_core_list(request.core_list)
    every = plan_binding(topology, host.slots, listed)
    bindings = tuple(every[slot] for slot in host.chosen)
    rank_variables = tuple(environment.thread_variables(binding.threads, given) for binding in bindings)
    notes = tuple(environment.thread_notes(min(binding.threads for binding in bindings), given))
    return HostPlan(ranks, bindings, variables, rank_variables, notes)


def assignments(variables: Mapping[str, str]) -> str:
    """Variables as a shell reads them."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
