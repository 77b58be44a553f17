"""The variables that workers get: what the user's files say, what is forwarded, what fits the binding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from accelerator.launch.errors import LaunchError
from op_builder import env as environment

FILE_NAME = ".accel_env"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# Beside what the accelerator names (NCCL...): where Python finds its modules, our own settings, OpenMP's, and those of
# what ranks on CPUs communicate through: gloo, oneCCL and its libfabric.
_ALWAYS_FORWARDED = (
    *("PYTHON", "ACCEL_", "DS_ACCELERATOR"),
    *("OMP_", "MKL_", "KMP_", "GOMP_"),
    *("GLOO_", "CCL_", "FI_"),
)

# Those by which users set up an MPI; Open MPI forwards its own itself.
_FORWARDED_BELOW = {"mpich": ("MPICH_", "MPIR_"), "impi": ("I_MPI_",)}


def read_environment_files(directories: Iterable[Path]) -> dict[str, str]:
    """The variables of the ``.accel_env`` files in these directories; a later file overrides an earlier.

    Raises:
        LaunchError: a line is wrong; the message has the file, the line and what was expected.
    """
    variables: dict[str, str] = {}
    for directory in directories:
        path = directory / FILE_NAME
        try:
            text = path.read_text()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise LaunchError(f"{path} cannot be read: {reason}.", "Make it readable, or remove it.") from None
        variables.update(parse_environment_file(text, str(path)))
    return variables


def parse_environment_file(text: str, source: str) -> dict[str, str]:
    """The variables of lines ``NAME=VALUE``; empty lines and those that begin with ``#`` are passed over."""
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise LaunchError(
                # Nothing of the line is told: it may be a piece of a secret that was broken in two.
                f"{source}:{number}: expected NAME=VALUE, without 'export' and without spaces around '='.",
                "Correct that line; comments begin with #.",
            )
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        variables[name] = value[1:-1] if quoted else value
    return variables


def forwarded(
    variables: Mapping[str, str], prefixes: Sequence[str], own: Iterable[str] = (), launcher: str = "ssh"
) -> dict[str, str]:
    """Of this process's variables those that other hosts get: an accelerator's ``export_envs()`` are prefixes.

    Args:
        own: names of variables that each host has for itself: which devices it shows.
    """
    wanted, kept = (*_ALWAYS_FORWARDED, *_FORWARDED_BELOW.get(launcher, ()), *prefixes), set(own)
    return {name: value for name, value in sorted(variables.items()) if name.startswith(wanted) and name not in kept}


def visible_devices(names: Iterable[str], given: Mapping[str, str], slots: Sequence[int]) -> dict[str, str]:
    """The variables that leave a host's ranks the devices of these slots.

    A slot is a number among the devices that are visible now: with ``CUDA_VISIBLE_DEVICES=4,5``, slot 1 is 5.

    Args:
        names: the accelerator's ``visible_devices_envs()``.
        given: the variables that the ranks of this very host will have otherwise.
    """
    variables: dict[str, str] = {}
    environment.write_visible_devices(variables, list(names), slots)
    for name in variables:
        listed = [entry.strip() for entry in given.get(name, "").split(",") if entry.strip()]
        if listed and max(slots) < len(listed):
            variables[name] = ",".join(listed[slot] for slot in slots)
    return variables


def thread_variables(threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """How many threads the libraries of a rank start; what the user has set stays as it is."""
    return {name: str(threads) for name in THREAD_VARIABLES if not given.get(name)}


def thread_notes(threads: int, given: Mapping[str, str]) -> list[str]:
    """What is to be said of the user's own numbers of threads."""
    return [
        f"{name}={given[name]} is kept, though a rank has {threads} cores: its threads will wait for each other. "
        f"Unset {name} to have it fit."
        for name in THREAD_VARIABLES
        if given.get(name, "").isdecimal() and int(given[name]) > threads
    ]


def check_against_binding(given: Mapping[str, str]) -> None:
    """Refuse settings by which OpenMP would bind the threads of all ranks to the same CPUs, or past their own.

    Raises:
        LaunchError: naming the variable, and why it cannot go with ``--bind_cores_to_rank``.
    """
    for name, (clashes, why) in _CLASHES.items():
        value = given.get(name, "")
        if value and clashes(value):
            raise LaunchError(
                f"{name}={value!r} cannot go with --bind_cores_to_rank: {why}.",
                f"Unset {name}, or leave --bind_cores_to_rank out.",
            )


def _names_processors(value: str) -> bool:
    return any(word in value.lower() for word in ("explicit", "proclist", "norespect"))


def _names_places(value: str) -> bool:
    return "{" in value or re.search(r"\d", value.partition("(")[0]) is not None


_CLASHES: dict[str, tuple[Callable[[str], bool], str]] = {
    "KMP_AFFINITY": (
        _names_processors,
        "it names processors, or has Intel's OpenMP disregard the mask of the process, so the threads of all ranks "
        "would sit on the same ones. Types such as 'compact' or 'scatter' are fine: they work within the rank's mask",
    ),
    "KMP_HW_SUBSET": (
        bool,
        "it chooses cores of the whole machine, the same for every rank, and not all of them are the rank's own",
    ),
    "GOMP_CPU_AFFINITY": (
        bool,
        "it names CPUs for the threads of every rank alike, so all ranks would sit on the same ones",
    ),
    "OMP_PLACES": (
        _names_places,
        "it names CPUs for every rank alike. 'cores' and 'threads' are fine: they mean those of the rank",
    ),
}
