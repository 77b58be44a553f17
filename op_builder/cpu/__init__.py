"""The builders of the CPU."""

from __future__ import annotations

from op_builder.builder.base import OpBuilder
from op_builder.catalog.registry import find_builder
from op_builder.host.async_io import AsyncIOBuilder
from op_builder.host.ccl_comm import CCLCommBuilder
from op_builder.host.cpu_adagrad import CPUAdagradBuilder
from op_builder.host.cpu_adam import CPUAdamBuilder
from op_builder.host.cpu_amsgrad import CPUAmsgradBuilder
from op_builder.host.cpu_lamb import CPULambBuilder
from op_builder.host.cpu_lion import CPULionBuilder
from op_builder.host.cpu_sgd import CPUSGDBuilder
from op_builder.host.fused import FusedAdamBuilder, FusedAmsgradBuilder, FusedLambBuilder, FusedLionBuilder
from op_builder.host.pin_memory import PinMemoryBuilder
from op_builder.host.shm_comm import ShareMemCommBuilder

__all__ = [
    "AsyncIOBuilder",
    "CCLCommBuilder",
    "CPUAdagradBuilder",
    "CPUAdamBuilder",
    "CPUAmsgradBuilder",
    "CPULambBuilder",
    "CPULionBuilder",
    "CPUSGDBuilder",
    "FusedAdamBuilder",
    "FusedAmsgradBuilder",
    "FusedLambBuilder",
    "FusedLionBuilder",
    "PinMemoryBuilder",
    "ShareMemCommBuilder",
]


def __getattr__(name: str) -> type[OpBuilder]:
    # A known op that this device lacks has a builder too, which says so.
    if name.endswith("Builder"):
        return find_builder(name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
