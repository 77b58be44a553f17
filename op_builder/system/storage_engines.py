"""Which engines of ``async_io`` this process can use.

Sandboxes and system settings may refuse an engine's system calls, so they are called here with nothing to do. That
needs no built op. The op itself transfers a byte when a handle is made.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from typing import NamedTuple

from op_builder import env
from op_builder.errors import EnvironmentValueError, IncompatibleOpError, OpArgumentError
from op_builder.system.outcomes import CheckOutcome, Failed, Passed, Rejection

ENGINES = ("io_uring", "libaio", "threads")
"""Names of the engines, in the order in which they are tried."""


class StorageEngine(NamedTuple):
    """An engine, and why the system refuses it; None where it works."""

    name: str
    refusal: str | None


def storage_engines() -> tuple[StorageEngine, ...]:
    """All engines, in the order in which they are tried."""
    return tuple(StorageEngine(name, refusal(name)) for name in ENGINES)


def refusal(name: str) -> str | None:
    """Why this process cannot use the engine of that name, or None."""
    if name == "threads":
        return None
    if not sys.platform.startswith("linux"):
        return f"{name} is part of Linux; this is {sys.platform}"
    number = _io_uring_errno() if name == "io_uring" else _native_aio_errno()
    return None if number == 0 else explain(name, number)


def forced_engine() -> str | None:
    """The engine that ``ACCEL_AIO_ENGINE`` names, or None.

    Raises:
        EnvironmentValueError: the engine is unknown.
    """
    name = env.ACCEL_AIO_ENGINE.get()
    if name is not None and name not in ENGINES:
        raise EnvironmentValueError(env.ACCEL_AIO_ENGINE.name, name, f"one of {', '.join(ENGINES)}")
    return name


def checked_engine(name: str | None) -> str | None:
    """An argument that may name an engine.

    Raises:
        OpArgumentError: the engine is unknown.
    """
    if name is not None and name not in ENGINES:
        raise OpArgumentError(f"Unknown engine {name!r}.", f"Choose one of {', '.join(ENGINES)}.")
    return name


def forced_engine_check() -> CheckOutcome:
    """The engine that is forced works, or none is forced."""
    name = forced_engine()
    reason = None if name is None else refusal(name)
    if name is None or reason is None:
        return Passed("storage engine", name or next(engine.name for engine in storage_engines() if not engine.refusal))
    return Failed("storage engine", Rejection(f"{env.ACCEL_AIO_ENGINE.name}={name}: {reason}.", _REMEDY))


def unusable_engine(name: str, reason: str) -> IncompatibleOpError:
    """The error for a selected engine that does not work."""
    return IncompatibleOpError(f"The storage engine {name} cannot be used: {reason}.", _REMEDY)


_REMEDY = "Select another, or none: without ACCEL_AIO_ENGINE and engine= the first that works is used."


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


# The same on every architecture but alpha.
_IO_URING_SETUP, _IO_URING_ENTER = 425, 426
# io_setup, io_destroy, io_submit and io_getevents, by platform.machine().
_SYSTEM_CALLS = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
    "riscv64": (0, 1, 2, 4),
    "loongarch64": (0, 1, 2, 4),
    "ppc64le": (227, 228, 230, 229),
    "s390x": (243, 244, 246, 245),
}
_CURRENT_POSITION = 1 << 3  # a feature of Linux 5.6, as are the commands in use


def _io_uring_errno() -> int:
    parameters = (ctypes.c_uint32 * 30)()  # struct io_uring_params; the sixth is the kernel's features
    ring, number = _system_call(_IO_URING_SETUP, 4, ctypes.byref(parameters))
    if ring < 0:
        return number
    try:
        if not parameters[5] & _CURRENT_POSITION:
            return errno.ENOSYS
        return _system_call(_IO_URING_ENTER, ring, 0, 0, 0, None, 0)[1]
    finally:
        os.close(ring)


def _native_aio_errno() -> int:
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if numbers is None:
        return 0  # unknown here; the op finds out when a handle is made
    setup, destroy, submit, get_events = numbers
    context, none = ctypes.c_ulong(0), ctypes.c_long(0)
    made, number = _system_call(setup, 4, ctypes.byref(context))
    if made < 0:
        return number
    number = (
        _system_call(submit, context, none, None)[1] or _system_call(get_events, context, none, none, None, None)[1]
    )
    _system_call(destroy, context)
    return number


def _system_call(number: int, *arguments: object) -> tuple[int, int]:
    """The call's result, and errno; 0 if it succeeded."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = int(call(ctypes.c_long(number), *arguments))
    return result, ctypes.get_errno() if result < 0 else 0
