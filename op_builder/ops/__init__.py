"""Python front ends of the native ops: optimizers, functions on tensors, a store of tensors on disk.

An optimizer is a :class:`torch.optim.Optimizer`. Nothing is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_builder.ops.functional.registration import dequantize_blocks as dequantize_blocks
    from op_builder.ops.functional.registration import packbits as packbits
    from op_builder.ops.functional.registration import quantize_blocks as quantize_blocks
    from op_builder.ops.functional.registration import rms_norm as rms_norm
    from op_builder.ops.functional.registration import unpackbits as unpackbits
    from op_builder.ops.functional.sycl import SYCLFusedAdam as SYCLFusedAdam
    from op_builder.ops.functional.sycl import SYCLFusedLion as SYCLFusedLion
    from op_builder.ops.io.tensor_store import TensorStore as TensorStore
    from op_builder.ops.optim.cpu_adagrad import CPUAdagrad as CPUAdagrad
    from op_builder.ops.optim.cpu_adam import CPUAdam as CPUAdam
    from op_builder.ops.optim.cpu_lamb import CPULamb as CPULamb
    from op_builder.ops.optim.cpu_lion import CPULion as CPULion
    from op_builder.ops.optim.cpu_sgd import CPUSGD as CPUSGD
    from op_builder.ops.optim.fused_adam import FusedAdam as FusedAdam
    from op_builder.ops.optim.fused_lamb import FusedLamb as FusedLamb
    from op_builder.ops.optim.fused_lion import FusedLion as FusedLion

_HOMES = {
    "CPUAdagrad": "op_builder.ops.optim.cpu_adagrad",
    "CPUAdam": "op_builder.ops.optim.cpu_adam",
    "CPULamb": "op_builder.ops.optim.cpu_lamb",
    "CPULion": "op_builder.ops.optim.cpu_lion",
    "CPUSGD": "op_builder.ops.optim.cpu_sgd",
    "FusedAdam": "op_builder.ops.optim.fused_adam",
    "FusedLamb": "op_builder.ops.optim.fused_lamb",
    "FusedLion": "op_builder.ops.optim.fused_lion",
    "SYCLFusedAdam": "op_builder.ops.functional.sycl",
    "SYCLFusedLion": "op_builder.ops.functional.sycl",
    "dequantize_blocks": "op_builder.ops.functional.registration",
    "packbits": "op_builder.ops.functional.registration",
    "quantize_blocks": "op_builder.ops.functional.registration",
    "rms_norm": "op_builder.ops.functional.registration",
    "unpackbits": "op_builder.ops.functional.registration",
    "TensorStore": "op_builder.ops.io.tensor_store",
}

__all__ = [
    "CPUSGD",
    "CPUAdagrad",
    "CPUAdam",
    "CPULamb",
    "CPULion",
    "FusedAdam",
    "FusedLamb",
    "FusedLion",
    "SYCLFusedAdam",
    "SYCLFusedLion",
    "TensorStore",
    "dequantize_blocks",
    "packbits",
    "quantize_blocks",
    "rms_norm",
    "unpackbits",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
