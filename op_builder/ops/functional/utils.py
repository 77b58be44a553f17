"""The op ``utils``: flatten and unflatten tensors, by torch's functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from op_builder.ops.arguments import require_memory
from op_builder.ops.declare import python_spec
from op_builder.spec import OpFamily


class FlatModule:
    """Flattens tensors into one, and splits it again: the object that ``UtilsBuilder().load()`` returns."""

    def flatten(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A new one-dimensional tensor with the elements of all tensors, which have one type and device."""
        for tensor in tensors:
            require_memory("A tensor", tensor)
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def unflatten(self, flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Views of ``flat`` with the shapes of ``tensors``, one after another."""
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def cast_to_byte_tensor(self, tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        """A view of a tensor's memory as bytes, or of each tensor of a list; tensors are contiguous."""
        if isinstance(tensors, torch.Tensor):
            return tensors.view(-1).view(torch.uint8)
        return [tensor.view(-1).view(torch.uint8) for tensor in tensors]


OP = OpFamily(
    "utils",
    "UtilsBuilder",
    "flatten tensors into one, and split it again",
    elsewhere=python_spec("utils", FlatModule),
)
