"""Shared memory that ranks make and hand out."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Any

from op_builder.errors import SharedMemoryCommError, SharedMemorySpaceError
from op_builder.ops.comm.shared_memory_meeting import Meeting, RankFacts
from op_builder.system.cgroups import HostFiles, available_memory_bytes

_CHECKED_BYTES = 16 << 20  # from here on, whether there is as much memory is asked before it is taken


def shared_segments(
    ops: Any, meeting: Meeting, size_bytes: int, *, is_locked: bool = False
) -> tuple[list[RankFacts], list[int]]:
    """Make a segment and exchange it: the facts of all ranks, and their descriptors, which the caller closes.

    Where one rank has no room all raise.
    """
    descriptor, failure = -1, None
    try:
        descriptor = _segment(ops, size_bytes, meeting.size)
        if is_locked:  # as long as this process lives: the others look at it
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except SharedMemorySpaceError as error:
        failure = error
    try:
        return meeting.exchange(descriptor, failure.message if failure else "")
    except BaseException as error:
        if descriptor >= 0:
            os.close(descriptor)
        if failure is not None and isinstance(error, SharedMemoryCommError):
            raise failure from None
        raise


def _segment(ops: Any, size_bytes: int, ranks: int) -> int:
    """The descriptor of new shared memory.

    Raises:
        SharedMemorySpaceError: there is no room for it, on each of the host's ranks.
    """
    if size_bytes >= _CHECKED_BYTES:
        # Taking more than is free would make the kernel end a process, perhaps another one.
        available = available_memory_bytes(HostFiles())
        if size_bytes * ranks > available:
            raise SharedMemorySpaceError(
                f"{size_bytes * ranks} bytes of shared memory are needed ({size_bytes} for each of {ranks} ranks); "
                f"{available} are available.",
                "Ask for less, or free some memory.",
                needed_bytes=size_bytes * ranks,
            )
    descriptor: int = ops.create_segment(size_bytes)
    if descriptor < 0:
        raise space_error(size_bytes, -descriptor)
    return descriptor


def space_error(size_bytes: int, number: int) -> SharedMemorySpaceError:
    remedies = {
        errno.EFBIG: "Raise the limit of file sizes (ulimit -f).",
        errno.EMFILE: "Raise the limit of open files (ulimit -n).",
        errno.ENOSYS: "The system has no memfd_create(2); use a newer kernel, or allow it in the sandbox.",
        errno.EPERM: "The sandbox forbids memfd_create(2) or sealing; allow them.",
    }
    return SharedMemorySpaceError(
        f"{size_bytes} bytes of shared memory cannot be had: {os.strerror(number)}.",
        remedies.get(number, "Free some memory, or raise the limit of this control group."),
        needed_bytes=size_bytes,
    )
