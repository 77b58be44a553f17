"""Segments of shared memory: created, and exchanged between the ranks of a group."""

from __future__ import annotations

import errno
import os
from typing import Any

from op_builder.errors import SharedMemoryCommError, SharedMemorySpaceError
from op_builder.ops.comm.shared_memory_meeting import Meeting, RankFacts
from op_builder.system.cgroups import HostFiles, available_memory_bytes

_CHECKED_BYTES = 16 << 20  # from this size on, free memory is checked first


def shared_segments(
    ops: Any, meeting: Meeting, size_bytes: int, *, is_locked: bool = False
) -> tuple[list[RankFacts], list[int]]:
    """Create a segment and exchange it; returns the facts of all ranks, and their descriptors, which the caller closes.

    If the memory of one rank does not suffice all raise.
    """
    descriptor, failure = -1, None
    try:
        descriptor = _segment(ops, size_bytes, meeting.size)
        if is_locked:  # until this process ends: the others check it
            import fcntl  # not at the top: Windows has none

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
        SharedMemorySpaceError: memory does not suffice for all ranks.
    """
    if size_bytes >= _CHECKED_BYTES:
        # Using more than is free would make the kernel kill a process, perhaps another one.
        available = available_memory_bytes(HostFiles())
        if size_bytes * ranks > available:
            raise SharedMemorySpaceError(
                f"{ranks} ranks need {size_bytes * ranks} bytes of shared memory ({size_bytes} each), but only "
                f"{available} are available.",
                "Request less, or free some memory.",
                needed_bytes=size_bytes * ranks,
            )
    descriptor: int = ops.create_segment(size_bytes)
    if descriptor < 0:
        raise space_error(size_bytes, -descriptor)
    return descriptor


def space_error(size_bytes: int, number: int) -> SharedMemorySpaceError:
    remedies = {
        errno.EFBIG: "Raise the file size limit (ulimit -f).",
        errno.EMFILE: "Raise the limit of open files (ulimit -n).",
        errno.ENOSYS: "The system has no memfd_create(2); use a newer kernel, or allow it in the sandbox.",
        errno.EPERM: "The sandbox forbids memfd_create(2) or sealing; allow them.",
    }
    return SharedMemorySpaceError(
        f"Allocating {size_bytes} bytes of shared memory failed: {os.strerror(number)}.",
        remedies.get(number, "Free some memory, or raise the limit of this control group."),
        needed_bytes=size_bytes,
    )
