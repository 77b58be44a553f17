"""Tensors in memory of whole pages that the system keeps in memory: for devices that read and write it themselves."""

from __future__ import annotations

import ctypes
import logging
import operator
import os
import threading
import weakref
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import torch

from op_builder.errors import AccelError, OpArgumentError
from op_builder.ops.arguments import untraced

logger = logging.getLogger(__name__)

_ADDRESSABLE_BYTES = 1 << 63  # more than fit into an int of torch's ops


class LockedMemoryError(AccelError, MemoryError):
    """There is no memory of the size asked for."""


class LockedMemoryFacts(NamedTuple):
    """What was got of what a locked tensor asks for.

    Attributes:
        address: of its first byte, a multiple of the page's size, and from 2 MiB on of 2 MiB.
        size_bytes: its whole pages.
        is_locked: the pages stay in memory; False where the limit (``ulimit -l``) does not allow that.
        huge_bytes: how much of it lies in large pages, None where the system does not tell.
        is_registered: the CUDA driver knows it as pinned.
    """

    address: int
    size_bytes: int
    is_locked: bool
    huge_bytes: int | None
    is_registered: bool


class _Stretch(NamedTuple):
    """Locked memory, and the namespace of torch ops that made it."""

    facts: LockedMemoryFacts
    ops: Any

    @property
    def end(self) -> int:
        return self.facts.address + self.facts.size_bytes


class _Stretches:
    """All locked memory of the process, whichever op made it."""

    def __init__(self) -> None:
        # Released where a storage dies, which may be anywhere, also inside a call of ours.
        self.lock = threading.RLock()
        self._starts: list[int] = []
        self._by_start: dict[int, _Stretch] = {}

    def add(self, stretch: _Stretch) -> None:
        with self.lock:
            self._by_start[stretch.facts.address] = stretch
            self._starts = sorted(self._by_start)

    def remove(self, address: int) -> None:
        with self.lock:
            if self._by_start.pop(address, None) is not None:
                self._starts = sorted(self._by_start)

    def find(self, tensor: torch.Tensor) -> _Stretch | None:
        """The one that the tensor's elements lie in.

        Raises:
            OpArgumentError: it is no tensor.
        """
        if not isinstance(tensor, torch.Tensor):
            raise OpArgumentError(f"{tensor!r} of type {type(tensor).__name__} is no tensor.", "Pass a tensor.")
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return None
        address = tensor.data_ptr()
        with self.lock:
            at = bisect_right(self._starts, address)
            stretch = self._by_start[self._starts[at - 1]] if at else None
        return stretch if stretch is not None and address < stretch.end else None


_stretches = _Stretches()


class LockedMemory:
    """Makes locked tensors, and knows which tensors lie in one, also of those that another op made.

    The memory is given back when the last tensor on it, view or not, is gone.

    Args:
        ops: the namespace of torch ops of ``csrc/bindings/locked_pages.h``.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self._has_warned = False

    @untraced
    def empty(self, num_elem: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of ``num_elem`` zeros in memory of its own.

        Raises:
            OpArgumentError: the number is negative or no int.
            LockedMemoryError: there is not as much memory.
        """
        is_number = isinstance(num_elem, SupportsIndex) and not isinstance(num_elem, bool)
        if not is_number or operator.index(num_elem) < 0:
            raise OpArgumentError(f"num_elem is {num_elem!r}.", "Pass the number of elements, an int of at least 0.")
        count = operator.index(num_elem)
        if count == 0:
            return torch.empty(0, dtype=dtype)
        size_bytes = count * dtype.itemsize
        address, mapped_bytes, is_locked, lock_error = 0, 0, False, 0
        if size_bytes < _ADDRESSABLE_BYTES:
            address, mapped_bytes, is_locked, lock_error, _ = self._ops.allocate(size_bytes)
        if address == 0:
            raise LockedMemoryError(f"There is no memory for {size_bytes} bytes.", "Free some, or ask for less.")
        if not is_locked:
            self._warn(mapped_bytes, lock_error)
        buffer = (ctypes.c_char * size_bytes).from_address(address)
        # Before anything can fail: from here on the memory belongs to `buffer`, which the tensor's storage keeps.
        is_registered = _register_with_cuda(address, mapped_bytes)
        finalizer = weakref.finalize(buffer, self._release, address, is_registered, os.getpid())
        finalizer.atexit = False  # tensors that live until the process ends may be read until then
        facts = LockedMemoryFacts(address, mapped_bytes, bool(is_locked), None, is_registered)
        _stretches.add(_Stretch(facts, self._ops))
        return torch.frombuffer(buffer, dtype=dtype, count=count)

    def is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's elements lie in a locked tensor's memory that was not freed."""
        return _stretches.find(tensor) is not None

    def facts(self, tensor: torch.Tensor) -> LockedMemoryFacts | None:
        """What a locked tensor, or a view of one, really got; None for other tensors."""
        stretch = _stretches.find(tensor)
        if stretch is None:
            return None
        return stretch.facts._replace(huge_bytes=_huge_bytes(stretch.facts.address))

    @untraced
    def unlock(self, tensor: torch.Tensor) -> bool:
        """Let the system move the tensor's pages again; False for a tensor that is none of ours.

        The memory itself stays until the last view is gone, so that none reads what is no longer there.
        """
        with _stretches.lock:
            stretch = _stretches.find(tensor)
            if stretch is None:
                return False
            _stretches.remove(stretch.facts.address)
        stretch.ops.unlock(stretch.facts.address)
        return True

    def _release(self, address: int, is_registered: bool, owner: int) -> None:
        if owner != os.getpid():
            return  # a fork: its copy ends with the process, and the driver's registration is the parent's
        _stretches.remove(address)
        if is_registered:
            _unregister_with_cuda(address)
        self._ops.release(address)

    def _warn(self, size_bytes: int, number: int) -> None:
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        logger.log(
            level,
            "%d bytes are page-aligned but not locked in memory: %s. The limit is ulimit -l.",
            size_bytes,
            os.strerror(number),
        )


class LockedTensors:
    """The functions on locked tensors, for the objects that offer them."""

    def __init__(self, memory: LockedMemory) -> None:
        self._memory = memory

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        """``num_elem`` zeros of the example's type, in page-locked memory that the last view gives back.

        Raises:
            OpArgumentError: the number is negative or no int, or the example is no tensor.
            LockedMemoryError: there is not as much memory.
        """
        if not isinstance(example_tensor, torch.Tensor):
            raise OpArgumentError(
                f"example_tensor is {example_tensor!r} of type {type(example_tensor).__name__}.",
                "Pass a tensor of the type that is wanted; its values do not matter.",
            )
        return self._memory.empty(num_elem, example_tensor.dtype)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Unlock a locked tensor; its memory stays until its last view is gone. False for others."""
        return self._memory.unlock(tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is a locked one, of ``async_io`` or ``pin_memory``, or a view of one, and not freed."""
        return self._memory.is_inside(tensor)

    def locked_memory_facts(self, tensor: torch.Tensor) -> LockedMemoryFacts | None:
        """What a locked tensor really got of the system; None for others."""
        return self._memory.facts(tensor)


def _register_with_cuda(address: int, size_bytes: int) -> bool:
    """Tell the CUDA driver of the memory, where the current accelerator is CUDA.

    Never run on a device by this project.
    """
    if not torch.cuda.is_available():
        return False
    from op_builder.catalog.device import current_accelerator

    if current_accelerator().device_name() != "cuda":
        return False
    code = torch.cuda.cudart().cudaHostRegister(address, size_bytes, 0)  # type: ignore[no-untyped-call]
    if int(code) != 0:
        logger.warning("The CUDA driver does not pin %d bytes at %#x: error %d.", size_bytes, address, int(code))
    return int(code) == 0


def _unregister_with_cuda(address: int) -> None:
    code = torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
    if int(code) != 0:
        logger.warning("The CUDA driver does not let go of the memory at %#x: error %d.", address, int(code))


def _huge_bytes(address: int) -> int | None:
    """How much of the mapping that begins there lies in large pages, as the kernel tells."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return None
    is_inside = False
    for line in lines:
        first = line.partition(" ")[0]
        if "-" in first:
            begin, _, end = first.partition("-")
            is_inside = int(begin, 16) <= address < int(end, 16)
        elif is_inside and first == "AnonHugePages:":
            return int(line.split()[1]) << 10
    return None
