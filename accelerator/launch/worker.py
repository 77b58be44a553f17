"""What stands between a launcher and a rank's program: it binds itself, then becomes the program.

``python -I -S worker.py SPEC -- COMMAND...``. It is run as a file, so that neither the user's directory nor
installed packages have a say in it and it starts in a few hundredths of a second. ``exec`` keeps what was
set, and gives the program an interpreter of its own whose memory lies where it was bound from the start.

Below torch's agent, the spec holds what the launcher planned. Below an MPI's launcher or Slurm's, every
host is planned by its own ranks, each of which comes to the same plan, and the worker stays as the
program's parent to tell how it ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: much may lie there that is named as modules here

import os
import signal
from typing import Any

from accelerator.launch.kernel import bind_to_cpus, end_with_parent, set_memory_policy
from op_builder import env as environment

WORKER = Path(__file__).resolve()


def worker_command(python: str, spec: dict[str, Any], program: list[str]) -> list[str]:
    """The command that runs ``program`` as a rank, as ``spec`` says.

    Args:
        spec: ``ranks`` (for each local rank ``cpus`` and ``memory`` as ``[mode, nodes]``; empty: nothing is
            bound), or all that :mod:`accelerator.launch.supervised` wants. Where the launcher itself starts the
            worker, ``parent`` is its process id: a worker that has another parent has outlived it, and ends.
            Everybody on the host can see the spec; so values that users have set travel in the environment.
    """
    return [python, "-I", "-S", str(WORKER), json.dumps(spec, separators=(",", ":")), "--", *program]


def main(arguments: list[str]) -> int:
    """Become the program; the exit status is only that of a program that cannot be started."""
    parent = os.getppid()
    spec, program = json.loads(arguments[0]), arguments[2:]
    # Told to end when the launcher is gone, so that not even SIGKILL leaves ranks behind.
    end_with_parent(signal.SIGKILL, spec.get("parent", parent))
    if "supervised" in spec:
        from accelerator.launch.supervised import supervise

        return supervise(spec, program)
    if spec["ranks"]:
        local_rank = environment.LOCAL_RANK.get()
        bind(spec["ranks"][local_rank], local_rank)
    return become(program, environment.child_environment())


def bind(own: dict[str, Any], local_rank: int) -> None:
    """Bind this process as its part of the spec says; what the kernel refuses is told and goes unbound."""
    refusals = [bind_to_cpus(own["cpus"])]
    mode, nodes = own["memory"]
    if mode != "any":
        refusals.append(set_memory_policy(mode, nodes))
    for reason in filter(None, refusals):
        tell(f"local rank {local_rank} runs unbound: {reason}. Containers may forbid that call (seccomp).")


def become(program: list[str], variables: dict[str, str]) -> int:
    """Replace this process by the program; returns only where that fails."""
    try:
        os.execvpe(program[0], program, variables)
    except OSError as error:
        tell(f"{program[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126  # as shells have it


def tell(text: str) -> None:
    """One line to standard error, in one piece."""
    os.write(2, f"accel-launch: {text}\n".encode(errors="backslashreplace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
