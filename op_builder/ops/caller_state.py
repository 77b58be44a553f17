"""The thread-local state of torch, for threads that work on behalf of a caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


class CallerState:
    """The grad mode, inference mode, autocast and default device of the thread that makes it.

    torch keeps these per thread, so a worker thread does not inherit those of its caller.
    """

    def __init__(self) -> None:
        self._is_inference = torch.is_inference_mode_enabled()
        self._has_grad = torch.is_grad_enabled()
        self._device = torch.get_default_device()
        self._autocast_dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Give the current thread this state within the block."""
        with ExitStack() as stack:
            if self._is_inference != torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(self._is_inference))
            stack.enter_context(torch.set_grad_enabled(self._has_grad))
            if self._device != torch.get_default_device():
                stack.enter_context(self._device)
            if self._autocast_dtype is not None or torch.is_autocast_enabled("cpu"):
                stack.enter_context(
                    torch.autocast("cpu", dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None)
                )
            yield
