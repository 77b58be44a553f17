"""What the strides of a tensor say about its memory."""

from __future__ import annotations

import torch


def is_overlapping(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory: some stride is within the reach of the dimensions with smaller strides."""
    if tensor.numel() == 0:
        return False
    reach = 0  # offset of the last element along the smaller strides
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
