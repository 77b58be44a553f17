"""The engines of ``async_io``: their names, and why the system refuses one."""

from __future__ import annotations

import errno
import os

from op_builder import env
from op_builder.errors import IncompatibleOpError

ENGINES = env.AIO_ENGINES
"""Names of the engines, in the order in which they are tried."""


def unusable_engine(name: str, reason: str) -> IncompatibleOpError:
    """The error for a selected engine that does not work."""
    return IncompatibleOpError(f"The storage engine {name} cannot be used: {reason}.", _REMEDY)


_REMEDY = "Unset ACCEL_AIO_ENGINE and omit engine=, so that the first engine that works is used."


def explain(name: str, number: int) -> str:
    """Why the system refused an engine with that errno."""
    forbidden = "it is forbidden by a sandbox"
    if name == "io_uring":
        forbidden += " or by /proc/sys/kernel/io_uring_disabled"
    causes = {
        errno.ENOSYS: "the kernel is too old or built without it, or a sandbox hides it",
        errno.EPERM: forbidden,
        errno.EACCES: forbidden,
        errno.EAGAIN: "all requests of /proc/sys/fs/aio-max-nr are in use" if name == "libaio" else "",
        errno.EMFILE: "the limit of open files (ulimit -n) leaves none for its queues and for files",
        errno.ENOMEM: "the limit of locked memory (ulimit -l) may be too low",
    }
    reason = f"the system refuses it: {os.strerror(number)} ({errno.errorcode.get(number, number)})"
    return f"{reason}; {cause}" if (cause := causes.get(number)) else reason
