"""The exceptions of this project.

Every exception that this project raises on purpose derives from :class:`AccelError`. Its message states what failed and
why; the remedy states what to do. A class that corresponds to a built-in one (``ValueError``, ``ImportError``) also
derives from it.
"""

from __future__ import annotations


class AccelError(Exception):
    """Base class of all exceptions of ``accelerator`` and ``op_builder``.

    Args:
        message: what failed, and why.
        remedy: what the reader can do; empty if there is no remedy.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message}\n  Remedy: {remedy}" if remedy else message)

    def __str__(self) -> str:  # OSError, ImportError and KeyError would print their own fields
        return Exception.__str__(self)

    def __reduce__(self) -> tuple[object, ...]:  # torch.distributed.checkpoint sends errors between ranks
        state = dict(self.__dict__)
        if isinstance(self, OSError):
            state |= {"errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return _with_args, (type(self), self.args), state


def _with_args(kind: type[AccelError], args: tuple[object, ...]) -> AccelError:
    """An error without its attributes, which unpickling sets afterwards."""
    error = kind.__new__(kind)
    error.args = args
    return error


class EnvironmentValueError(AccelError, ValueError):
    """The value of an environment variable cannot be parsed."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f"{name}={value!r} is not valid: expected {expected}.", f"Correct or unset {name}.")


class ArgumentError(AccelError, ValueError):
    """An argument, or what a builder's method returns, has a wrong type or value."""


class OpArgumentError(AccelError, ValueError):
    """A native op does not accept its arguments; no tensor was changed."""


class StorageError(AccelError, OSError):
    """Reading or writing a tensor failed; the handle stays usable.

    The part of the tensor (reading) or of the file (writing) before the failure is changed, the rest is not.

    Attributes:
        errno: the system's error number; EIO without one, as for a file that is too short.
        filename: the file as it was passed: a path or a descriptor.
        offset: the byte in the file at which the operation failed.
        bytes_done: transferred bytes of the operation, in all its parts.
        others: further failed operations, if one call waits for several.
    """

    def __init__(
        self, message: str, remedy: str = "", *, errno: int, filename: object, offset: int, bytes_done: int
    ) -> None:
        super().__init__(message, remedy)
        self.errno = errno
        self.strerror = message
        self.filename = filename
        self.offset = offset
        self.bytes_done = bytes_done
        self.others: tuple[StorageError, ...] = ()


class TensorNotFoundError(AccelError, KeyError):
    """A store has no tensor with that name; the message suggests near matches."""


class DamagedTensorError(AccelError, ValueError):
    """The file of a stored tensor has changed since it was saved, or a safetensors file is not valid.

    Attributes:
        filename: the file.
    """

    def __init__(self, message: str, remedy: str, *, filename: str) -> None:
        self.filename = filename
        super().__init__(message, remedy)


class CommunicationError(AccelError, RuntimeError):
    """A rank of a group died, did not connect, or did not answer in time."""


class SharedMemoryCommError(CommunicationError):
    """A collective between ranks that share memory failed, or their group could not be created.

    Attributes:
        rank: the rank that failed; None if it is not a single one.
        operation: the collective, such as ``all_reduce``; empty outside of a collective.
        waited_s: seconds that this rank waited for the other one.
        is_group_usable: whether the group is unchanged and can still be used.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        rank: int | None = None,
        operation: str = "",
        waited_s: float = 0.0,
        is_group_usable: bool = False,
    ) -> None:
        super().__init__(message, remedy)
        self.rank = rank
        self.operation = operation
        self.waited_s = waited_s
        self.is_group_usable = is_group_usable


class SharedMemorySpaceError(SharedMemoryCommError, MemoryError):
    """Not enough shared memory is available.

    Attributes:
        needed_bytes: the requested size.
    """

    def __init__(self, message: str, remedy: str, *, needed_bytes: int) -> None:
        super().__init__(message, remedy)
        self.needed_bytes = needed_bytes


class UnknownOpError(AccelError, ValueError):
    """No op or builder has that name; the message suggests near matches."""


class UnknownBuilderError(UnknownOpError, ImportError):
    """``from op_builder import <name>`` named an unknown builder, or a class of ``op_builder.ops``."""


class SourceNotFoundError(AccelError, FileNotFoundError):
    """A source file that a builder names does not exist."""


class ToolchainError(AccelError, RuntimeError):
    """A compiler, a build tool or an SDK is missing or broken."""


class IncompatibleOpError(AccelError, RuntimeError):
    """The op cannot be built or loaded on this machine."""


class CompileError(AccelError, RuntimeError):
    """A compiler or linker failed.

    Attributes:
        diagnostic: the first error (``file:line: error: ...``), or the end of the output.
        command: the command line that failed.
        log_path: the file with the full output.
    """

    def __init__(self, op: str, diagnostic: str, command: str, log_path: str, remedy: str = "") -> None:
        self.diagnostic = diagnostic
        self.command = command
        self.log_path = log_path
        # The cause comes last, because the command may fill the terminal.
        super().__init__(
            f"Building op '{op}' failed.\n  Command: {command}\n  Full log: {log_path}\n  First error: {diagnostic}",
            remedy,
        )


class CompilerRefused(AccelError, RuntimeError):
    """A compiler was about to start where ``--compiles raise`` or :mod:`op_builder.compiles` forbids it."""


class BuildCancelled(AccelError):
    """A build was cancelled; its compilers were stopped and its files removed."""


class CacheError(AccelError, OSError):
    """The cache directory cannot be read or written, or the disk is full."""


class LoadError(AccelError, ImportError):
    """A built op could not be loaded into this process."""


class MissingCUDAException(AccelError):
    """No CUDA toolkit was found to compile CUDA sources."""


class CUDAMismatchException(AccelError):
    """The CUDA toolkit's version and the one that torch was built with are incompatible."""
