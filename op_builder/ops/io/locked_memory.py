"""Tensors in page-locked memory, which devices can read and write themselves."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from typing import Any, NamedTuple

import torch

from op_builder.device import current_accelerator
from op_builder.errors import AccelError, OpArgumentError
from op_builder.messages import warn_once
from op_builder.ops.arguments import bounded_int, require_memory, untraced

logger = logging.getLogger(__name__)

_ADDRESSABLE_BYTES = 1 << 63  # more than an int of torch's ops can hold


class LockedMemoryError(AccelError, MemoryError):
    """There is not enough memory for a locked tensor."""


class _Block(NamedTuple):
    """Locked memory, the namespace of torch ops that allocated it, and the accelerator that registered it."""

    address: int
    size_bytes: int
    ops: Any
    accelerator: Any


_blocks: dict[int, _Block] = {}
"""All locked memory of the process by address, whichever op allocated it."""


class LockedTensors:
    """The functions on locked tensors that ``async_io`` and ``pin_memory`` share."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    @untraced
    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        """``num_elem`` zeros of the example's type in page-locked memory, which is freed with its last view.

        Raises:
            OpArgumentError: the number is negative or not an int, or the example is not a tensor.
            LockedMemoryError: there is not enough memory.
        """
        if not isinstance(example_tensor, torch.Tensor):
            raise OpArgumentError(
                f"example_tensor is {example_tensor!r} of type {type(example_tensor).__name__}.",
                "Pass a tensor of the wanted type; its values do not matter.",
            )
        dtype = example_tensor.dtype
        count = bounded_int("num_elem", num_elem, 0, None, "Pass the number of elements, an int of at least 0.")
        if count == 0:
            return torch.empty(0, dtype=dtype, device="cpu")
        size_bytes = count * dtype.itemsize
        address, mapped_bytes, lock_error = 0, 0, 0
        if size_bytes < _ADDRESSABLE_BYTES:
            address, mapped_bytes, lock_error = self._ops.allocate(size_bytes)
        if address == 0:
            raise LockedMemoryError(f"Not enough memory for {size_bytes} bytes.", "Free some memory, or request less.")
        if lock_error:
            error = os.strerror(lock_error)
            warn_once(logger, f"Tensors are page-aligned but not locked in memory: {error}. The limit is ulimit -l.")
        buffer = (ctypes.c_char * size_bytes).from_address(address)
        block = _Block(address, mapped_bytes, self._ops, _registered_by(address, mapped_bytes))
        # The tensor's storage keeps `buffer`.
        finalizer = weakref.finalize(buffer, _release, block, os.getpid())
        finalizer.atexit = False  # a tensor may be used until the process ends
        _blocks[address] = block
        return torch.frombuffer(buffer, dtype=dtype, count=count)

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of a dense tensor in page-locked memory; raises as :meth:`new_cpu_locked_tensor`.

        An OpArgumentError also if the tensor's storage was freed.
        """
        pinned = self.new_cpu_locked_tensor(tensor.numel(), tensor).view(tensor.shape)
        require_memory("The tensor", tensor)
        return pinned.copy_(tensor.detach())

    @untraced
    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Unlock a locked tensor; its memory stays until its last view is freed. False for other tensors."""
        block = _find(tensor)
        return block is not None and _unlock(block.address)

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        """:meth:`free_cpu_locked_tensor` of the locked tensor that begins at ``address``."""
        return _unlock(address)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is, or views, a locked one of ``async_io`` or ``pin_memory`` that was not freed."""
        return _find(tensor) is not None


def _unlock(address: int) -> bool:
    """Unlock the memory that begins at ``address``; False if there is none."""
    block = _blocks.pop(address, None)
    if block is None:
        return False
    block.ops.unlock(block.address, block.size_bytes)
    return True


def _find(tensor: torch.Tensor) -> _Block | None:
    """The locked memory that holds the tensor's elements; raises an OpArgumentError if it is not a tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise OpArgumentError(f"{tensor!r} of type {type(tensor).__name__} is not a tensor.", "Pass a tensor.")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    address = tensor.data_ptr()
    for block in list(_blocks.values()):
        if block.address <= address < block.address + block.size_bytes:
            return block
    return None


def _release(block: _Block, owner: int) -> None:
    if owner != os.getpid():
        return  # a fork's copy ends with the process, and the driver's registration belongs to the parent
    _blocks.pop(block.address, None)
    if block.accelerator is not None:
        try:
            block.accelerator.unregister_host_memory(block.address)
        except RuntimeError as error:
            logger.warning("The CUDA driver does not unregister the memory at %#x: %s.", block.address, error)
    block.ops.release(block.address, block.size_bytes)


def _registered_by(address: int, size_bytes: int) -> Any:
    """The current accelerator, if it is CUDA and registers the memory with its driver; else None."""
    if not torch.cuda.is_available():
        return None
    accelerator = current_accelerator()
    if accelerator.device_name() != "cuda":
        return None
    try:
        accelerator.register_host_memory(address, size_bytes)
    except RuntimeError as error:
        text = "The CUDA driver does not pin %d bytes at %#x, so copies to the GPU will be slower: %s."
        logger.warning(text, size_bytes, address, error)
        return None
    return accelerator
