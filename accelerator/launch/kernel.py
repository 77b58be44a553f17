"""The kernel's own calls for a process that is about to become a rank.

Each function returns None, or the reason where the kernel refuses: containers may forbid such calls, and a
rank that is not bound is better than none. All three outlive ``exec``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Collection

# include/uapi/linux/mempolicy.h and prctl.h
_MODES = {"any": 0, "prefer": 1, "bind": 2}
_PREFER_MANY = 5  # since Linux 5.15; "prefer" takes one node alone
_PR_SET_PDEATHSIG = 1

# set_mempolicy(2) has no function in the C library; asm/unistd.h of each architecture, "generic" for newer ones.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "loongarch64": 237, "ppc64le": 261, "s390x": 270}


def bind_to_cpus(cpus: Collection[int]) -> str | None:
    """Let this process, and what it starts, run on these CPUs alone."""
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
        return f"no memory policies are known on {platform.system()} {platform.machine()}"
    word_bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (max(nodes, default=0) // word_bits + 1))()
    for node in nodes:
        words[node // word_bits] |= 1 << node % word_bits
    code = _MODES[mode]
    if mode == "prefer" and len(nodes) > 1:
        code = _PREFER_MANY
    # One bit more than there are: the kernel takes the number for that of the first bit beyond.
    refused = _call(lambda libc: libc.syscall(number, code, words if nodes else None, len(words) * word_bits + 1))
    if refused == errno.EINVAL and code == _PREFER_MANY:
        return set_memory_policy(mode, [min(nodes)])
    return None if refused == 0 else f"set_mempolicy: {os.strerror(refused)}"


def end_with_parent(signal_number: int, parent: int) -> str | None:
    """Have the kernel send this process a signal when its parent ends, whatever ended that.

    Args:
        parent: its process id. If that has ended before, the kernel would not tell: the signal is sent at once.
    """
    if platform.system() == "Linux":
        refused = _call(lambda libc: libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))
        reason = None if refused == 0 else f"prctl: {os.strerror(refused)}"
    else:
        reason = f"{platform.system()} has no such call"
    if os.getppid() != parent:
        os.kill(os.getpid(), signal_number)
    return reason


def _call(function: Callable[[ctypes.CDLL], int]) -> int:
    """Zero, or errno."""
    result = function(ctypes.CDLL(None, use_errno=True))
    return 0 if result >= 0 else ctypes.get_errno()
