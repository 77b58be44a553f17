"""The error family.

Every error this project raises on purpose derives from :class:`AccelError` and says what was
tried, what was found against what was needed, and what to do. Where Python has a fitting
built-in (``ValueError``, ``ImportError``), the class derives from that too, so code that
catches the built-in keeps working.
"""

from __future__ import annotations


class AccelError(Exception):
    """Root of all errors of ``accelerator`` and ``op_builder``.

    Args:
        message: what was tried, and what was found against what was needed.
        remedy: what the reader can do about it; empty when nothing can be done.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message}\n  Remedy: {remedy}" if remedy else message)


class EnvironmentValueError(AccelError, ValueError):
    """An environment variable holds text that cannot be parsed."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f"{name}={value!r} is not valid: expected {expected}.", f"Correct or unset {name}.")


class OpArgumentError(AccelError, ValueError):
    """A native op was given arguments it cannot take; no tensor was changed."""


class StorageError(AccelError, OSError):
    """Reading or writing a tensor failed; the handle it was asked of stays usable.

    What of the tensor (reading) or the file (writing) was reached before is changed, the rest is not.

    Attributes:
        errno: the system's number of the error; EIO where there was none, as for a file that is too short.
        filename: the file, as it was given: a path or a descriptor.
        offset: byte in the file at which it failed.
        bytes_done: bytes of the operation that were transferred, in all its parts together.
        others: further operations that failed, where one call waits for several.
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

    def __str__(self) -> str:  # OSError would print errno fields
        return Exception.__str__(self)


class TensorNotFoundError(AccelError, KeyError):
    """A store has no tensor of that name; the message suggests near matches."""

    def __str__(self) -> str:  # KeyError would print it quoted
        return Exception.__str__(self)


class DamagedTensorError(AccelError, ValueError):
    """A stored tensor's file is not what was saved.

    Attributes:
        filename: the file.
    """

    def __init__(self, message: str, remedy: str, *, filename: str) -> None:
        self.filename = filename
        super().__init__(message, remedy)


class CommunicationError(AccelError, RuntimeError):
    """Ranks that were to work together did not: one of them died, did not come, or was waited for too long."""


class SharedMemoryCommError(CommunicationError):
    """A collective between ranks that share memory failed, or their group could not be made.

    Attributes:
        rank: whom it failed for; None where it is no single rank.
        operation: the collective, ``all_reduce``; empty where it was none.
        waited_s: seconds that this rank waited for that one.
        is_group_usable: nothing was changed, and the group can be used on.
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
    """There is not as much shared memory as was asked for.

    Attributes:
        needed_bytes: how much it was.
    """

    def __init__(self, message: str, remedy: str, *, needed_bytes: int) -> None:
        super().__init__(message, remedy)
        self.needed_bytes = needed_bytes


class UnknownOpError(AccelError, ValueError):
    """No builder has that name; the message suggests near matches."""


class UnknownBuilderError(UnknownOpError, ImportError):
    """``from op_builder import <name>`` named an unknown builder."""


class SourceNotFoundError(AccelError, FileNotFoundError):
    """A source file that a builder names does not exist in any place it may lie."""

    def __str__(self) -> str:  # FileNotFoundError would print errno fields
        return Exception.__str__(self)


class ToolchainError(AccelError, RuntimeError):
    """A compiler, a build tool or an SDK is missing or does not work."""


class IncompatibleOpError(AccelError, RuntimeError):
    """The op cannot be built or loaded here; the message holds the reason and the remedy."""


class CompileError(AccelError, RuntimeError):
    """A compiler or linker failed.

    Attributes:
        diagnostic: the first real diagnostic (``file:line: error: ...``), or the output's end.
        command: the failing command line.
        log_path: file with the whole output.
    """

    def __init__(self, op: str, diagnostic: str, command: str, log_path: str, remedy: str = "") -> None:
        self.diagnostic = diagnostic
        self.command = command
        self.log_path = log_path
        # The cause comes last: on a terminal the command alone fills a screen.
        super().__init__(
            f"Building op '{op}' failed.\n  Command: {command}\n  Full log: {log_path}\n  First error: {diagnostic}",
            remedy,
        )


class BuildCancelled(AccelError):
    """A build was cancelled; its compilers were ended and nothing of it was kept."""


class CacheError(AccelError, OSError):
    """The cache directory cannot be read or written, or the disk is full."""

    def __str__(self) -> str:  # OSError would print errno fields
        return Exception.__str__(self)


class LoadError(AccelError, ImportError):
    """A built op could not be loaded into this process."""

    def __str__(self) -> str:  # ImportError would print only its msg field
        return Exception.__str__(self)


class MissingCUDAException(AccelError):
    """CUDA sources are to be compiled, but no CUDA toolkit was found."""


class CUDAMismatchException(AccelError):
    """The CUDA toolkit's version and the one torch was built with do not fit together."""
