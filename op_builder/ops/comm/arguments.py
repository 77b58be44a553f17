"""The arguments of a process group's methods: which of them are covered, and in which form they came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Tensors = Sequence[torch.Tensor]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
REDUCIBLE = dict.fromkeys(("sum", "max", "min"), (*_FLOATS, torch.int32)) | {"avg": _FLOATS}
"""By operation, the types that are reduced."""

_SUM = dist.ReduceOp.SUM
_OPS: dict[Any, str] = {_SUM: "sum", dist.ReduceOp.AVG: "avg", dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}


def are_plain(tensors: Tensors, dtypes: tuple[torch.dtype, ...] | None = None) -> bool:
    """Whether all are plain dense tensors in host memory, of one of the types."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided:
            return False
        if dtypes is not None and tensor.dtype not in dtypes:
            return False
    return True


def as_list(tensors: Any) -> list[torch.Tensor]:
    """One tensor or several, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def reduction(rest: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The operation, None for one that is not covered; and whether the caller goes on meanwhile."""
    given = rest[0] if rest else keywords.get("opts", keywords.get("op", _SUM))
    op = getattr(given, "reduceOp", given)
    return _OPS.get(getattr(op, "op", op)), is_async(rest, keywords)


def is_async(rest: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """Whether the caller goes on meanwhile: so it does unless it said otherwise, as torch's options have it."""
    given = rest[0] if rest else keywords.get("opts")
    return bool(getattr(given, "asyncOp", True))


def are_alike(singles: Tensors, nested: Sequence[Tensors], size: int) -> bool:
    """Whether each list has one tensor for each rank, all as large and of the type as the single one it belongs to."""
    return len(singles) == len(nested) and all(
        len(listed) == size and all(one.numel() == single.numel() and one.dtype == single.dtype for one in listed)
        for single, listed in zip(singles, nested, strict=True)
    )


def make_timeout(timeout: timedelta | None) -> timedelta:
    """``timeout``, or torch's default."""
    return timeout if timeout is not None else dist.distributed_c10d.default_pg_timeout
