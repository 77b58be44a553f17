"""Python front ends of the native ops.

``CPUAdam`` is a :class:`torch.optim.Optimizer`. Nothing is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_builder.ops.cpu_adam import CPUAdam as CPUAdam

_HOMES = {"CPUAdam": "op_builder.ops.cpu_adam"}

__all__ = ["CPUAdam"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
