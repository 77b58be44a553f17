"""The module that ``PinMemoryBuilder().load()`` returns."""

from __future__ import annotations

from typing import Any

import torch

from op_builder.ops.io.locked_memory import LockedMemory, LockedTensors


class PinMemoryModule(LockedTensors):
    """Page-locked tensors.

    Args:
        ops: the namespace of torch ops that the binding registered.
    """

    def __init__(self, ops: Any) -> None:
        super().__init__(LockedMemory(ops))

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a CPU tensor, of its shape and contiguous, in page-locked memory."""
        pinned = self.new_cpu_locked_tensor(tensor.numel(), tensor).view(tensor.shape)
        return pinned.copy_(tensor.detach())
