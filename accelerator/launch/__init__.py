"""The launcher, ``accel-launch`` = ``python -m accelerator.launch``: ranks bound to cores, on one machine or many.

``topology``, ``binding``, ``hosts`` and ``plan`` are functions of their arguments. ``torchrun``, ssh, mpirun or srun
starts the processes. :func:`plan_binding` serves other launchers. Hosts files, ssh, MPI and Slurm take a quarter of the
lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerator.launch.binding import RankBinding


def plan_binding(ranks: int, cpus: Iterable[int] | str | None = None) -> tuple[RankBinding, ...]:
    """The CPUs and the memory of each of ``ranks`` processes on this machine, as ``--bind_cores_to_rank`` assigns them.

    Binds nothing; the caller does, by ``os.sched_setaffinity(0, binding.cpus)`` or by options of another launcher.

    Args:
        ranks: number of processes, at least 1.
        cpus: use exactly these, as numbers or as a list in the kernel's format, ``"0-51,56-107"``; by default, one CPU
            of each core that the affinity mask and the cpuset allow.

    Returns:
        for each rank its ``cpus`` and ``numa_nodes``, ascending, and ``memory`` with ``mode`` (``any``, ``bind`` or
        ``prefer``) and ``nodes``. No CPU is in two of them.

    Raises:
        BindingError: ``ranks`` is not at least 1, there are more ranks than CPUs, or ``cpus`` is no list of CPUs that
            this process may use. It is a ValueError.
    """
    # Imported here, because each process that the launcher starts imports this package first.
    from accelerator.errors import BindingError
    from accelerator.launch import binding
    from accelerator.launch.topology import own_affinity, read_topology
    from op_builder.system.cgroups import HostFiles

    if type(ranks) is not int or ranks < 1:
        raise BindingError(f"plan_binding: ranks is {ranks!r}, which is not a number of ranks.", "Pass at least 1.")
    if cpus is None:
        listed = None
    elif isinstance(cpus, str):
        listed = binding.parse_core_list(cpus)
    else:
        listed = frozenset(cpus) if isinstance(cpus, Iterable) else frozenset([None])
        if not all(type(cpu) is int for cpu in listed):
            raise BindingError(f"plan_binding: cpus is {cpus!r}, not a list of numbers.", "Pass CPUs' numbers.")
    return binding.plan_binding(read_topology(HostFiles(), own_affinity()), ranks, listed)
