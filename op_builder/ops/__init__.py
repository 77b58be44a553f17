"""Python front ends of the native ops.

Each is a :class:`torch.optim.Optimizer`. Nothing is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_builder.ops.cpu_adagrad import CPUAdagrad as CPUAdagrad
    from op_builder.ops.cpu_adam import CPUAdam as CPUAdam
    from op_builder.ops.cpu_lamb import CPULamb as CPULamb
    from op_builder.ops.cpu_lion import CPULion as CPULion
    from op_builder.ops.cpu_sgd import CPUSGD as CPUSGD
    from op_builder.ops.fused_adam import FusedAdam as FusedAdam
    from op_builder.ops.fused_lamb import FusedLamb as FusedLamb
    from op_builder.ops.fused_lion import FusedLion as FusedLion

_HOMES = {
    "CPUAdagrad": "op_builder.ops.cpu_adagrad",
    "CPUAdam": "op_builder.ops.cpu_adam",
    "CPULamb": "op_builder.ops.cpu_lamb",
    "CPULion": "op_builder.ops.cpu_lion",
    "CPUSGD": "op_builder.ops.cpu_sgd",
    "FusedAdam": "op_builder.ops.fused_adam",
    "FusedLamb": "op_builder.ops.fused_lamb",
    "FusedLion": "op_builder.ops.fused_lion",
}

__all__ = ["CPUSGD", "CPUAdagrad", "CPUAdam", "CPULamb", "CPULion", "FusedAdam", "FusedLamb", "FusedLion"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
