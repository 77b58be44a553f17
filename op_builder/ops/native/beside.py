"""What is done on the calling thread while a native op works on torch's other threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

# With fewer, what is to be done is done before threads could share it.
_MANY_TENSORS = 1000

_Function = ctypes.CFUNCTYPE(None)


def are_many(tensors: int) -> bool:
    """Whether so many tensors are worth working on beside an op."""
    return tensors >= _MANY_TENSORS


def call_beside(op: Callable[..., object], arguments: Sequence[Any], function: Callable[[], object]) -> None:
    """Call an op that calls a C function of ours on this thread, while torch's others do what else there is to do.

    Args:
        op: takes ``arguments`` and the function's address.
        function: what the C function calls. Made of C alone, as a method of ``list`` over ``map`` and builtins: where
            Python code ran, handlers of signals would, too, and find tensors half updated, or move them. What it
            raises is lost: its effects must tell whether it came to its end.
    """
    callback = _Function(function)
    address = ctypes.c_void_p.from_buffer(callback).value  # cast() would make a reference cycle
    op(*arguments, address)


def tell_autograd_beside(op: Callable[..., object], arguments: Sequence[Any], changed: Sequence[torch.Tensor]) -> bool:
    """Call an op that changes tensors, while autograd's versions of them are counted up.

    Returns:
        Whether all were.
    """
    told: list[None] = []
    # What torch.autograd.graph.increment_version calls.
    call_beside(op, arguments, partial(told.extend, map(torch._C._increment_version, (changed,))))
    return bool(told)
