"""One read or write: the checks of its arguments, and its error messages."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple, Union

import torch

from op_builder.errors import OpArgumentError, StorageError
from op_builder.ops.arguments import bounded_int, is_dense, not_dense, require_memory

File = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", int]
"""A file's name, or an open descriptor."""

# FailureKind of csrc/kernels/aio/operation.h; 3 is a mismatch found by validation.
_SYSTEM_CALL, _END_OF_FILE = 1, 2

REMEDIES = {
    errno.ENOENT: "Check the name, and that its directory exists.",
    errno.EEXIST: "Choose another path: this one is a file, or a link to what is missing.",
    errno.ENOTDIR: "Choose another path: a part of this one is a file.",
    errno.EISDIR: "Move the directory of this name.",
    errno.ENOSPC: "Free space on the device; a file that could not be written may hold some of it.",
    errno.EDQUOT: "Free space of the quota; a file that could not be written may hold some of it.",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f).",
    errno.EACCES: "Let this user read and write the directory.",
    errno.EPERM: "Let this user read and write the directory.",
    errno.EROFS: "Choose a directory on a file system that can be written.",
    errno.EIO: "The device or its connection fails; check the system log (dmesg).",
    errno.EMFILE: "Wait for some operations first, each of which opens its file twice, or raise the limit (ulimit -n).",
    errno.EBADF: "Pass a descriptor that is open for this; validating a write needs one to read and write.",
    errno.ESPIPE: "Pass a file with offsets; a pipe or socket has none.",
    errno.ENXIO: "Pass a file with offsets; a pipe or socket has none.",
    errno.EINVAL: "Pass a descriptor without O_APPEND, of a file that can be read and written at an offset.",
}
"""What to do about errors of the system, by errno."""
_OF_TRANSFERS = dict.fromkeys(
    (errno.EPERM, errno.EACCES, errno.ENOSYS),
    "If a sandbox now refuses the I/O engine of this handle, create a new handle.",
)


class Operation(NamedTuple):
    """An operation in flight; ``memory`` has a reference of its own to the caller's storage, and keeps it alive."""

    memory: torch.Tensor
    filename: File
    offset: int
    is_write: bool
    validates: bool

    def failure(self, kind: int, error: int, offset: int, bytes_done: int) -> StorageError | None:
        """The error of an operation that ended like this; None if it is complete."""
        if kind == 0:
            return None
        if kind == _SYSTEM_CALL:
            return self.system_error(error, offset, bytes_done, _OF_TRANSFERS.get(error))
        if kind == _END_OF_FILE:
            what = f"the file ends at byte {offset}, and the request ends at byte {self.offset + self.memory.nbytes}"
            remedy = "Read fewer bytes, or find out what truncated the file."
        else:
            what = f"byte {offset} of the file differs from the tensor"
            remedy = "If nothing else writes to the file or the tensor, look for errors of the disk: `dmesg`."
        return self._error(what, remedy, errno.EIO, offset, bytes_done)

    def system_error(self, number: int, offset: int, bytes_done: int, remedy: str | None = None) -> StorageError:
        """The error of a system call that failed with errno ``number``."""
        what = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
        return self._error(what, remedy or REMEDIES.get(number, ""), number, offset, bytes_done)

    def _error(self, what: str, remedy: str, number: int, offset: int, bytes_done: int) -> StorageError:
        doing, direction = ("Writing", "to") if self.is_write else ("Reading", "from")
        file = f"descriptor {self.filename}" if isinstance(self.filename, int) else repr(os.fsdecode(self.filename))
        return StorageError(
            f"{doing} {self.memory.nbytes} bytes {direction} {file} at offset {self.offset} failed at byte "
            f"{offset} of the file, after {bytes_done} bytes were done: {what}.",
            remedy,
            errno=number,
            filename=self.filename,
            offset=offset,
            bytes_done=bytes_done,
        )


def checked_offset(file_offset: object) -> int:
    """The offset in bytes, an int of at least 0, or an OpArgumentError."""
    remedy = "Pass bytes from the file's beginning, 0 or more."
    return bounded_int("file_offset", file_offset, 0, (1 << 62) - 1, remedy)


def checked_file(filename: object) -> File:
    """The file's name unchanged, or the descriptor as an int, or an OpArgumentError."""
    remedy = "Pass a file's name (str, bytes or a path) or an open descriptor."
    if isinstance(filename, (str, bytes, os.PathLike)):
        try:
            is_name = b"\0" not in os.fsencode(filename)
        except (TypeError, UnicodeError):
            is_name = False
        if not is_name:
            raise OpArgumentError(f"{filename!r} cannot be a file's name.", remedy)
        return filename
    return bounded_int("filename", filename, 0, (1 << 31) - 1, remedy)


def checked_address(buffer: torch.Tensor, role: str = "buffer") -> int:
    """The address of a tensor's elements; an OpArgumentError unless it is contiguous, in host memory and not freed."""
    if not is_dense(buffer):
        raise not_dense(role, buffer)
    if buffer.is_quantized:
        raise OpArgumentError(f"{role} is quantized; a tensor of plain numbers is needed.", "Pass x.int_repr().")
    if buffer.device.type != "cpu":
        raise OpArgumentError(f"{role} is on {buffer.device}; a tensor in host memory is needed.", "Pass x.cpu().")
    check_memory(buffer, role)
    if not buffer.is_contiguous():
        raise OpArgumentError(f"{role} is not contiguous.", "Pass x.contiguous().")
    if buffer.is_conj() or buffer.is_neg():
        raise OpArgumentError(
            f"{role} is a lazy view (conj or neg); its bytes are not its values.",
            "Pass x.resolve_conj().resolve_neg().",
        )
    return buffer.data_ptr()


def check_memory(tensor: torch.Tensor, role: str) -> None:
    """Refuse a strided tensor whose elements are not in memory.

    Raises:
        OpArgumentError: it has no memory (in ``FakeTensorMode`` or ``torch.func.vmap``), or was freed.
    """
    require_memory(role, tensor)
    try:
        storage = tensor.untyped_storage()  # on the meta device for a FakeTensor, which has no address
        has_memory = storage.device.type == tensor.device.type and (tensor.nbytes == 0 or storage.data_ptr() != 0)
    except RuntimeError:  # a wrapper of another tensor has neither storage nor address
        has_memory = False
    if not has_memory:
        raise OpArgumentError(
            f"{role} is a {type(tensor).__name__} without memory of its own, such as a fake or functional tensor.",
            "Pass the tensors themselves, outside of torch.func's transformations and FakeTensorMode.",
        )


def open_file(operation: Operation) -> int:
    """A new descriptor of the operation's file, or a StorageError."""
    name = operation.filename
    try:
        if isinstance(name, int):
            return os.dup(name)
        flags = os.O_RDONLY
        if operation.is_write:  # validation reads it again
            flags = (os.O_RDWR if operation.validates else os.O_WRONLY) | os.O_CREAT
        return opened(name, flags)
    except OSError as error:
        raise operation.system_error(error.errno or errno.EIO, operation.offset, 0) from None


def opened(name: str | bytes | os.PathLike[str] | os.PathLike[bytes], flags: int = os.O_RDONLY) -> int:
    """A new descriptor of a file, or an OSError; a named pipe without a process at its other end is one, too."""
    descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)  # otherwise it would wait for that process
    os.set_blocking(descriptor, True)  # else io_uring does not wait for the disk on some file systems
    return descriptor
