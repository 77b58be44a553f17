"""The plan for the ranks of one host: bindings and environment variables."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accelerator.errors import LaunchError
from accelerator.launch.binding import RankBinding, parse_core_list, plan_binding, threads_per_rank
from accelerator.launch.hosts import Host, text_of, unreadable
from accelerator.launch.job import Job
from accelerator.launch.topology import Topology, format_list
from accelerator.nvml import listed_devices
from op_builder.messages import counted
from op_builder.system.outcomes import Rejection

FILE_NAME = ".accel_env"
_DEEPSPEEDS_NAME = ".deepspeed_env"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# In addition to the accelerator's prefixes: settings of Python, of this project, of OpenMP, and of the communication
# libraries for CPUs (gloo, oneCCL and its libfabric).
_ALWAYS_FORWARDED = (
    *("PYTHON", "ACCEL_", "DS_ACCELERATOR"),
    *("OMP_", "MKL_", "KMP_", "GOMP_"),
    *("GLOO_", "CCL_", "FI_"),
)
# Settings of an MPI; Open MPI forwards its own.
_FORWARDED_BY_LAUNCHER = {"mpich": ("MPICH_", "MPIR_", "MV2_"), "impi": ("I_MPI_",)}


@dataclass(frozen=True)
class HostPlan:
    """The plan for the ranks of one host.

    Attributes:
        bindings: one for each rank; empty for unbound ranks.
        threads: the number of threads for each rank.
        variables: environment variables for all ranks.
        notes: messages for the user.
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
        threads = assignments(self.thread_variables) or "threads set by the user"
        return f"CPU {format_list(binding.cpus)}{nodes}, memory {binding.memory}, {threads}"

    def lines(self) -> list[str]:
        """The bindings, a line for each rank."""
        lines = [f"local rank {rank}: {self.describe(rank)}" for rank in range(len(self.bindings))]
        if not lines and self.thread_variables:
            lines.append(f"{counted(self.ranks, 'unbound rank')}, {assignments(self.thread_variables)} for each")
        return lines


def plan_host(job: Job, host: Host, topology: Topology, given: Mapping[str, str]) -> HostPlan:
    """The plan for the chosen slots of a host.

    Slots that are not chosen keep their cores, so that two launches on different slots do not overlap.

    Args:
        given: the ranks' environment without this plan.
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


def assignments(variables: Mapping[str, str]) -> str:
    """The variables in shell syntax."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def read_environment_files(directories: Iterable[Path]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The variables of the ``.accel_env`` files in these directories, and messages about the files with their levels.

    A later file overrides an earlier. A file that another user can have written is ignored: its variables could run
    that user's code.
    Lines are ``NAME=VALUE``; as in a shell, ``export`` may precede the name and quotes may enclose the value.
    """
    variables: dict[str, str] = {}
    notes = []
    for path in dict.fromkeys(directory / FILE_NAME for directory in directories):
        if os.path.lexists(path.with_name(_DEEPSPEEDS_NAME)) and not os.path.lexists(path):
            message = f"{path.with_name(_DEEPSPEEDS_NAME)} is not read. Remedy: Name it {FILE_NAME}."
            notes.append(("warning", f"Warning: {message}"))
        text = _read_trusted(path)
        if isinstance(text, Rejection):
            notes.append(("warning", f"Warning: ignored {path} ({text.reason}). Remedy: {text.remedy}"))
        if not isinstance(text, str):
            continue
        notes.append(("info", f"Read environment variables from {path}"))
        for number, line in enumerate(map(str.strip, text.split("\n")), 1):
            if not line or line.startswith("#"):
                continue
            assignment = re.fullmatch(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", line, re.ASCII | re.DOTALL)
            if assignment is None:
                # Without the line, which may be part of a secret.
                raise LaunchError(f"{path}:{number}: expected NAME=VALUE.", "Correct that line; comments begin with #.")
            name, value = assignment.groups()
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            variables[name] = value[1:-1] if is_quoted else value
    return variables, notes


def _read_trusted(path: Path) -> str | Rejection | None:
    """The text of a file that the user did not name, None if it does not exist; rejected if others can have written it.

    Root is trusted.
    """
    # Others' directories that cannot be searched, as after sudo, have no file for this user.
    if not os.path.lexists(path):
        return None
    try:
        directories = (path.parent, Path(os.path.realpath(path)).parent)
        reason = next(filter(None, (_why_untrusted(place, place.stat()) for place in directories)), "")
        if not reason:
            # Opening a named pipe would wait.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return Rejection("it is not a regular file", "Replace it with a regular file, or remove it.")
                reason = _why_untrusted(path, status)
                if not reason:
                    return text_of(path, file.read())
        return Rejection(reason, "Own the file and its directory, and run `chmod go-w` on both.")
    except FileNotFoundError:  # a link to nowhere
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def _why_untrusted(place: Path, status: os.stat_result) -> str:
    if status.st_uid not in (0, os.geteuid()):
        return f"{place} belongs to another user"
    return f"other users may write {place}" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def forwarded(
    variables: Mapping[str, str], prefixes: Sequence[str], own: Iterable[str] = (), launcher: str = "ssh"
) -> dict[str, str]:
    """The variables that other hosts get: those with a prefix of ours or of ``export_envs()``, but not ``own``."""
    wanted, kept = (*_ALWAYS_FORWARDED, *_FORWARDED_BY_LAUNCHER.get(launcher, ()), *prefixes), set(own)
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.isidentifier() and name.startswith(wanted) and name not in kept
    }


_ROCM_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def visible_devices(names: Sequence[str], given: Mapping[str, str], slots: Sequence[int]) -> dict[str, str]:
    """The variables that make only the devices of these slots visible.

    A slot is an index into the devices that are visible now: with ``CUDA_VISIBLE_DEVICES=4,5``, slot 1 is 5. Hidden
    devices stay hidden: a variable with none of the slots keeps its value, since ROCm ignores an empty one.
    """
    variables = {}
    # ROCm reads HIP's variable first, then CUDA's. Both index the devices that ROCR's leaves.
    is_rocm = "CUDA_VISIBLE_DEVICES" in names and not given.keys().isdisjoint(_ROCM_VARIABLES)
    for name in (*names, *(("HIP_VISIBLE_DEVICES",) if is_rocm else ())):
        chosen = [str(slot) for slot in slots]
        if name in given:
            visible = listed_devices(given[name])
            chosen = [visible[slot] for slot in slots if slot < len(visible)]
        if chosen:
            variables[name] = ",".join(chosen)
    return variables


def check_threads(threads: int, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables for the number of threads unless the user set them, and a note for each value that is too large."""
    variables = {name: str(threads) for name in THREAD_VARIABLES if not given.get(name)}
    notes = tuple(
        f"{name}={given[name]} is more than the {threads} cores of a rank, so its threads will compete for them. "
        f"Unset {name} to use {threads}."
        for name in THREAD_VARIABLES
        if given.get(name, "").isdecimal() and int(given[name]) > threads
    )
    return variables, notes


def check_against_binding(given: Mapping[str, str]) -> None:
    """Raise LaunchError for OpenMP settings that bind the threads of all ranks to the same CPUs."""
    for name, (clashes, why) in _CLASHES.items():
        value = given.get(name, "")
        if value and clashes(value):
            raise LaunchError(
                f"{name}={value!r} is incompatible with --bind_cores_to_rank: {why}.",
                f"Unset {name}, or omit --bind_cores_to_rank.",
            )


_CLASHES: dict[str, tuple[Callable[[str], object], str]] = {
    "KMP_AFFINITY": (
        lambda value: re.search("explicit|proclist|norespect", value.lower()),
        "it lists processors or ignores the affinity mask of the process, so the threads of all ranks would run on the "
        "same CPUs. Types such as 'compact' and 'scatter' respect the mask",
    ),
    "KMP_HW_SUBSET": (bool, "it selects the same cores for every rank"),
    "GOMP_CPU_AFFINITY": (bool, "it lists the same CPUs for every rank"),
    "OMP_PLACES": (
        lambda value: re.search(r"[{\d]", value.partition("(")[0]),
        "it lists the same CPUs for every rank. 'cores' and 'threads' select those of the rank",
    ),
}
