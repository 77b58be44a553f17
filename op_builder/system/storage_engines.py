"""Which engines of ``async_io`` the system grants to this process.

Each writes and reads a byte through its system calls, as sandboxes and system settings refuse some of them. The op
need not be built for that.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from op_builder import env
from op_builder.errors import EnvironmentValueError, IncompatibleOpError, OpArgumentError
from op_builder.system.outcomes import CheckOutcome, Failed, Passed

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
    return Failed("storage engine", f"{env.ACCEL_AIO_ENGINE.name}={name}: {reason}.", _REMEDY)


def refused(name: str, reason: str) -> IncompatibleOpError:
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
# io_setup, io_destroy, io_submit, io_getevents and memfd_create, by platform.machine().
_SYSTEM_CALLS = {
    "x86_64": (206, 207, 209, 208, 319),
    "aarch64": (0, 1, 2, 4, 279),
    "riscv64": (0, 1, 2, 4, 279),
    "loongarch64": (0, 1, 2, 4, 279),
    "ppc64le": (227, 228, 230, 229, 360),
    "s390x": (243, 244, 246, 245, 350),
}
_CURRENT_POSITION = 1 << 3  # the feature that came with the commands in use, in Linux 5.6
_OFFSET_OF_ENTRIES = 0x10000000
_BYTE = ctypes.create_string_buffer(1)  # outlives a command that cannot be collected


def _transfer_errno(run: Callable[[int, bool, int], int]) -> int:
    """The errno of writing and reading a byte of a memory file, as sandboxes may grant a queue but not its use.

    Args:
        run: performs a command, given its number, whether it is a write and the descriptor; returns bytes or -errno.
    """
    numbers = _SYSTEM_CALLS.get(platform.machine())
    descriptor = -1 if numbers is None else _system_call(numbers[4], b"accel-probe", 1)[0]
    if descriptor < 0:
        return 0  # unknown here; the op finds out at the first transfer
    try:
        for number, is_write in enumerate((True, False)):
            if (result := run(number, is_write, descriptor)) != 1:
                return -result or errno.EIO
        return 0
    finally:
        os.close(descriptor)


def _io_uring_errno() -> int:
    parameters = (ctypes.c_uint32 * 30)()  # struct io_uring_params; the sixth is the kernel's features
    ring, number = _system_call(_IO_URING_SETUP, 4, ctypes.byref(parameters))
    if ring < 0:
        return number
    try:
        if not parameters[5] & _CURRENT_POSITION:
            return errno.ENOSYS
        return _transfer_errno(lambda *command: _run_in_ring(ring, list(parameters), *command))
    finally:
        os.close(ring)


def _run_in_ring(ring: int, parameters: Sequence[int], number: int, is_write: bool, descriptor: int) -> int:
    entries_count, completions_count = parameters[:2]
    head, tail, order, completed, completions = (parameters[word] for word in (10, 11, 16, 21, 25))
    rings_bytes = max(order + 4 * entries_count, completions + 16 * completions_count)
    with (
        mmap.mmap(ring, rings_bytes) as rings,
        mmap.mmap(ring, 64 * entries_count, offset=_OFFSET_OF_ENTRIES) as entries,
    ):
        entry = (23 if is_write else 22, 0, 0, descriptor, 0, ctypes.addressof(_BYTE), 1)
        struct.pack_into("=BBHiQQI", entries, 64 * number, *entry)
        struct.pack_into("=I", rings, order + 4 * number, number)
        struct.pack_into("=I", rings, tail, number + 1)
        while struct.unpack_from("=I", rings, completed)[0] <= number:
            waiting = number + 1 - struct.unpack_from("=I", rings, head)[0]
            entered, error = _system_call(_IO_URING_ENTER, ring, waiting, number + 1, 1, None, 0)
            if entered < 0 and error != errno.EINTR:
                return -error
        return int(struct.unpack_from("=i", rings, completions + 16 * number + 8)[0])


def _native_aio_errno() -> int:
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if numbers is None:
        return 0  # unknown here; the op finds out when a handle is made
    context = ctypes.c_ulong(0)
    made, number = _system_call(numbers[0], 4, ctypes.byref(context))
    if made < 0:
        return number

    def run(_number: int, is_write: bool, descriptor: int) -> int:
        fields = (0, 0, is_write, 0, descriptor, ctypes.addressof(_BYTE), 1, 0)
        block = ctypes.create_string_buffer(struct.pack("=QQHhIQQq16x", *fields))
        event = (ctypes.c_int64 * 4)()
        taken, error = _system_call(numbers[2], context, ctypes.c_long(1), ctypes.byref(ctypes.pointer(block)))
        if taken == 1:
            taken, error = _system_call(numbers[3], context, ctypes.c_long(1), ctypes.c_long(1), event, None)
        return event[2] if taken == 1 else -error

    error = _transfer_errno(run)
    _system_call(numbers[1], context)
    return error


def _system_call(number: int, *arguments: object) -> tuple[int, int]:
    """The call's result, and errno."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = int(call(ctypes.c_long(number), *arguments))
    return result, ctypes.get_errno()
