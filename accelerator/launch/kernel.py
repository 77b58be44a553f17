"""The kernel's own calls for a process that is about to start a rank's program; the program inherits the effects.

A container may forbid such calls, and a rank that is not bound is better than none: functions return the reason for a
refusal, or None.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
from collections.abc import Collection

# include/uapi/linux/mempolicy.h and prctl.h
_MODES = {"any": 0, "prefer": 1, "bind": 2}
_PREFER_MANY = 5  # since Linux 5.15; "prefer" takes only one node
_PR_SET_PDEATHSIG = 1

# set_mempolicy(2) has no function in the C library; asm/unistd.h of each architecture, "generic" for newer ones.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "loongarch64": 237, "ppc64le": 261, "s390x": 270}


def bind_to_cpus(cpus: Collection[int]) -> str | None:
    """Let this process, and what it starts, run only on these CPUs."""
    if not hasattr(os, "sched_setaffinity"):
        return "this system has no affinity masks"
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        return f"sched_setaffinity: {error.strerror}"
    return None


def set_memory_policy(mode: str, nodes: Collection[int]) -> str | None:
    """Take memory of this process, and of what it starts, from these NUMA nodes; see ``binding.MemoryPolicy``."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return f"memory policies are not supported on {platform.system()} {platform.machine()}"
    word_bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (max(nodes, default=0) // word_bits + 1))()
    for node in nodes:
        words[node // word_bits] |= 1 << node % word_bits
    code = _PREFER_MANY if mode == "prefer" and len(nodes) > 1 else _MODES[mode]
    libc = ctypes.CDLL(None, use_errno=True)
    # One bit more than the words have: the kernel subtracts one.
    if libc.syscall(number, code, words if nodes else None, len(words) * word_bits + 1) >= 0:
        return None
    refused = ctypes.get_errno()
    if refused == errno.EINVAL and code == _PREFER_MANY:
        return set_memory_policy(mode, [min(nodes)])
    return f"set_mempolicy: {os.strerror(refused)}"


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, of this process id, ends for whatever reason."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has already ended
        os.kill(os.getpid(), signal.SIGKILL)
