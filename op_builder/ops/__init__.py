"""Python front ends of the native ops: optimizers, functions on tensors, a store of tensors on disk.

An optimizer is a :class:`torch.optim.Optimizer`. Nothing is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_builder.ops.functional.block_quantize import dequantize_blocks as dequantize_blocks
    from op_builder.ops.functional.block_quantize import quantize_blocks as quantize_blocks
    from op_builder.ops.functional.packbits import packbits as packbits
    from op_builder.ops.functional.packbits import unpackbits as unpackbits
    from op_builder.ops.functional.rms_norm import rms_norm as rms_norm
    from op_builder.ops.io.checkpoint import CheckpointReader as CheckpointReader
    from op_builder.ops.io.checkpoint import CheckpointWriter as CheckpointWriter
    from op_builder.ops.io.safetensors_file import load_safetensors as load_safetensors
    from op_builder.ops.io.tensor_store import TensorStore as TensorStore
    from op_builder.ops.optim.cpu_adagrad import CPUAdagrad as CPUAdagrad
    from op_builder.ops.optim.cpu_adam import CPUAdam as CPUAdam
    from op_builder.ops.optim.cpu_lamb import CPULamb as CPULamb
    from op_builder.ops.optim.cpu_lion import CPULion as CPULion
    from op_builder.ops.optim.cpu_sgd import CPUSGD as CPUSGD
    from op_builder.ops.optim.fused_adam import FusedAdam as FusedAdam
    from op_builder.ops.optim.fused_adam import SYCLFusedAdam as SYCLFusedAdam
    from op_builder.ops.optim.fused_lamb import FusedLamb as FusedLamb
    from op_builder.ops.optim.fused_lion import FusedLion as FusedLion
    from op_builder.ops.optim.fused_lion import SYCLFusedLion as SYCLFusedLion

_MODULES = {
    "functional.block_quantize": ("dequantize_blocks", "quantize_blocks"),
    "functional.packbits": ("packbits", "unpackbits"),
    "functional.rms_norm": ("rms_norm",),
    "io.checkpoint": ("CheckpointReader", "CheckpointWriter"),
    "io.safetensors_file": ("load_safetensors",),
    "io.tensor_store": ("TensorStore",),
    "optim.cpu_adagrad": ("CPUAdagrad",),
    "optim.cpu_adam": ("CPUAdam",),
    "optim.cpu_lamb": ("CPULamb",),
    "optim.cpu_lion": ("CPULion",),
    "optim.cpu_sgd": ("CPUSGD",),
    "optim.fused_adam": ("FusedAdam", "SYCLFusedAdam"),
    "optim.fused_lamb": ("FusedLamb",),
    "optim.fused_lion": ("FusedLion", "SYCLFusedLion"),
}
_HOMES = {name: f"op_builder.ops.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
