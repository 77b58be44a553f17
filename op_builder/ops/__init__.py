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

_HOMES = {
    "CPUAdagrad": "op_builder.ops.cpu_adagrad",
    "CPUAdam": "op_builder.ops.cpu_adam",
    "CPULamb": "op_builder.ops.cpu_lamb",
    "CPULion": "op_builder.ops.cpu_lion",
    "CPUSGD": "op_builder.ops.cpu_sgd",
}

__all__ = ["CPUSGD", "CPUAdagrad", "CPUAdam", "CPULamb", "CPULion"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
