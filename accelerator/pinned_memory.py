"""The members for page-locked host memory, from which devices copy asynchronously.

Torch allocates it, or the op async_io if ``DS_PIN_MEMORY_BACKEND=native``. The tensors of async_io have the attribute
``ds_pinned``, which is True until :meth:`PinnedMemory.unpin_memory`.
"""

# ruff: noqa: ARG002 - the defaults take arguments that only some devices use

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accelerator.errors import NotHostMemoryError
from op_builder import env as environment

if TYPE_CHECKING:
    import torch


class PinnedMemory:
    """Page-locked memory of one device.

    A subclass overrides ``_torch_pin_memory``, ``_torch_is_pinned`` and ``_torch_empty_pinned`` if torch's own
    functions do not support its device.
    """

    _page_memory: Any = None  # async_io's handle, made by the first request for whole pages

    def pin_memory(
        self, tensor: torch.Tensor, align_bytes: int = 1, make_copy: bool = True, match_shape: bool = True
    ) -> torch.Tensor:
        """A copy of a CPU tensor in page-locked memory.

        Args:
            align_bytes: alignment; 1 is torch's own, 0 requests whole pages, if the device supports them.
            make_copy: False leaves the values undefined, if async_io allocates; torch always copies.
            match_shape: False returns a one-dimensional tensor, if async_io allocates; torch keeps the shape.
        """
        if environment.DS_PIN_MEMORY_BACKEND.get() == "torch":
            return self._torch_pin_memory(tensor)
        return self._lock_pages(tensor, make_copy, match_shape)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in page-locked memory, or a view of one that is."""
        is_ours = self._page_memory is not None and self._page_memory.is_pinned(tensor)
        return is_ours or self._torch_is_pinned(tensor)

    def unpin_memory(self, tensor: torch.Tensor) -> bool | None:
        """Unlock pages that async_io locked; the tensor stays usable.

        Returns:
            Whether there were any; None if torch pins memory, which it also unpins.
        """
        if self._page_memory is not None and self._page_memory.free_cpu_locked_tensor(tensor):
            tensor.ds_pinned = False  # type: ignore[attr-defined]
            return True
        return False if environment.DS_PIN_MEMORY_BACKEND.get() == "native" else None

    def pin_empty(self, *size: int | Sequence[int], dtype: torch.dtype, device: Any = "cpu") -> torch.Tensor:
        """A new, uninitialised tensor in page-locked memory; an ordinary one if pinning has no meaning here.

        Raises:
            NotHostMemoryError: ``device`` is not the CPU.
        """
        import torch

        if str(device).partition(":")[0] != "cpu":
            raise NotHostMemoryError(f"Memory of {device} cannot be page-locked.", "Pass device='cpu', or omit it.")
        shape = torch.Size(size if len(size) != 1 or isinstance(size[0], int) else size[0])  # type: ignore[arg-type]
        example = torch.empty(0, dtype=dtype, device="cpu")
        if environment.DS_PIN_MEMORY_BACKEND.get() == "torch":
            return self._torch_empty_pinned(example, shape)
        return self._new_locked(example, shape)

    def pin_empty_like(
        self, tensor: torch.Tensor, device: Any = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """:meth:`pin_empty` with the tensor's shape and, without ``dtype``, its type."""
        return self.pin_empty(tensor.shape, dtype=dtype or tensor.dtype, device=device)

    def pin_memory_alignment(self) -> int:
        """The alignment in bytes that the device needs of page-locked memory."""
        return 1

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-lock existing memory for the device's driver. False if the driver has no such function."""
        return False

    def unregister_host_memory(self, address: int) -> bool:
        """Undo :meth:`register_host_memory`; returns the same."""
        return False

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(shape, device="cpu", pin_memory=True)

    def _lock_pages(self, tensor: torch.Tensor, make_copy: bool, match_shape: bool) -> torch.Tensor:
        """:meth:`pin_memory` in whole pages; raises IncompatibleOpError if async_io cannot be built or loaded."""
        shape = tensor.shape if match_shape else (tensor.numel(),)
        if not make_copy:
            return self._new_locked(tensor, shape)
        return _marked(self._async_io().pin_memory(tensor).view(shape))

    def _new_locked(self, example: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return _marked(self._async_io().new_cpu_locked_tensor(math.prod(shape), example).view(shape))

    def _async_io(self) -> Any:
        if self._page_memory is None:
            self._page_memory = self.create_op_builder("AsyncIOBuilder").load().aio_handle()  # type: ignore[attr-defined]
        return self._page_memory


def _marked(pinned: torch.Tensor) -> torch.Tensor:
    pinned.ds_pinned = True  # type: ignore[attr-defined]
    return pinned
