"""Parameters that are split over ranks: DTensors (FSDP2, tensor parallelism), and those of FSDP1.

The native ops update the local shard of a DTensor. Its states are DTensors, too, so that torch.distributed.checkpoint
can reshard them, except 8-bit ones: their bytes are those of the local shard, and state_dict() has the values.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


class Sharding(NamedTuple):
    """How parameters are distributed."""

    mesh: DeviceMesh
    placements: Sequence[Any]

    def split_dims(self) -> list[int]:
        """The dimensions of the mesh along which ranks have different elements."""
        return [
            dim
            for dim, placement in enumerate(self.placements)
            if not placement.is_replicate() and self.mesh.size(dim) > 1
        ]

    def norm(self, local_norm: float) -> float:
        """The norm over all shards; every rank of the mesh has to call it."""
        dims = self.split_dims()
        if not dims:
            return local_norm
        total = torch.full((), local_norm * local_norm, dtype=torch.float64, device=self.mesh.device_type)
        for dim in dims:
            torch.distributed.all_reduce(total, group=self.mesh.get_group(dim))
        return math.sqrt(total.item())


def is_dtensor(tensor: object) -> TypeIs[DTensor]:
    """Whether this is a DTensor."""
    # A program that has a DTensor has imported the module; it is not imported for the others.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def sharding_of(param: torch.Tensor) -> Sharding | None:
    """How a DTensor is distributed; None for another tensor."""
    return Sharding(param.device_mesh, tuple(param.placements)) if is_dtensor(param) else None


def is_flat(param: torch.Tensor) -> bool:
    """Whether FSDP1 manages this parameter, of which this attribute is the only sign."""
    return getattr(param, "_fsdp_flattened", False)


def is_split(param: torch.Tensor) -> bool:
    """Whether another rank has other elements of this parameter."""
    sharding = sharding_of(param)
    return is_flat(param) if sharding is None else bool(sharding.split_dims())


@torch.no_grad()  # to_local() then makes no autograd node
def local_of(tensor: torch.Tensor, param: torch.Tensor | None = None) -> torch.Tensor:
    """The local shard of a DTensor, redistributed as ``param`` is; another tensor unchanged."""
    if not is_dtensor(tensor):
        return tensor
    if is_dtensor(param) and tensor.placements != param.placements:
        tensor = tensor.redistribute(param.device_mesh, param.placements)
    local = tensor.to_local()
    return local.wait() if hasattr(local, "wait") else local  # the result of a collective that may still run


def like_param(local: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """The state with this local shard: a DTensor where ``param`` is one."""
    if not is_dtensor(param):
        return local
    return type(param).from_local(
        local, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )
