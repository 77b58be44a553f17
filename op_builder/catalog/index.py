"""The index of this project's ops: where each is declared.

All other lists of ops follow from it: the packages ``op_builder.cpu``, ``cuda``, ``xpu`` and ``host``, ``ALL_OPS``, the
report, the switches ``ACCEL_BUILD_<OP>``, uv's cache keys in ``pyproject.toml`` and the table in the documentation.
"""

from __future__ import annotations

import importlib
from functools import cache

from op_builder.spec import OpFamily

# The module in op_builder.ops whose OP declares the op. By name, because a load imports only the module of its own op.
_DECLARED_IN = {
    "CPUAdamBuilder": "optim.cpu_adam",
    "CPUAdagradBuilder": "optim.cpu_adagrad",
    "CPULionBuilder": "optim.cpu_lion",
    "CPULambBuilder": "optim.cpu_lamb",
    "CPUSGDBuilder": "optim.cpu_sgd",
    "FusedAdamBuilder": "optim.fused_adam",
    "FusedLionBuilder": "optim.fused_lion",
    "FusedLambBuilder": "optim.fused_lamb",
    "AsyncIOBuilder": "io.async_io",
    "PinMemoryBuilder": "io.pin_memory",
    "ShareMemCommBuilder": "comm.shm_comm",
    "CCLCommBuilder": "comm.ccl_comm",
    "BlockQuantizeBuilder": "functional.block_quantize",
    "RMSNormBuilder": "functional.rms_norm",
    "PackbitsBuilder": "functional.packbits",
    "UtilsBuilder": "functional.utils",
}

BUILDERS = tuple(_DECLARED_IN)
"""The names of the builders, in the order of all lists."""

NAMES = {module.rpartition(".")[2]: builder for builder, module in _DECLARED_IN.items()}
"""The builder of each op, by the op's name, which is also its module's."""


@cache
def family_of(builder: str) -> OpFamily | None:
    """The op whose builder has that name; None for another package's."""
    if builder not in _DECLARED_IN:
        return None
    declared: OpFamily = importlib.import_module(f"op_builder.ops.{_DECLARED_IN[builder]}").OP
    return declared


def families() -> list[OpFamily]:
    """All ops of this project."""
    return [family for family in map(family_of, BUILDERS) if family is not None]


_CUDA = "CUDA code"

DEEPSPEED_ONLY_OPS = {
    "DeepCompileBuilder": ("dc", _CUDA),
    "EvoformerAttnBuilder": ("evoformer_attn", f"{_CUDA}, needs CUTLASS"),
    "FPQuantizerBuilder": ("fp_quantizer", _CUDA),
    "FlashAttentionBuilder": ("flash_attn", "for XPU"),
    "GDSBuilder": ("gds", f"{_CUDA}, NVIDIA GPUDirect Storage"),
    "InferenceBuilder": ("transformer_inference", _CUDA),
    "InferenceCoreBuilder": ("inference_core_ops", _CUDA),
    "InferenceCutlassBuilder": ("cutlass_ops", f"{_CUDA}, needs deepspeed-kernels"),
    "NotImplementedBuilder": ("not_implemented", "a place-holder for ops that a device lacks"),
    "QuantizerBuilder": ("quantizer", _CUDA),
    "RaggedOpsBuilder": ("ragged_device_ops", f"{_CUDA}, needs deepspeed-kernels"),
    "RaggedUtilsBuilder": ("ragged_ops", _CUDA),
    "RandomLTDBuilder": ("random_ltd", _CUDA),
    "SparseAttnBuilder": ("sparse_attn", "removed in DeepSpeed 0.19"),
    "SpatialInferenceBuilder": ("spatial_inference", _CUDA),
    "StochasticTransformerBuilder": ("stochastic_transformer", _CUDA),
    "TransformerBuilder": ("transformer", _CUDA),
}
"""Builders that DeepSpeed's interface names and this project does not have: the names of their ops, and what they are.

They are known names on every device: DeepSpeed resolves all of them while it is imported.
"""


def markdown_table() -> str:
    """The table for the documentation."""
    lines = ["| op | builder | devices | what it does |", "|---|---|---|---|"]
    for op in families():
        devices = "all (host memory)" if op.host else "all" if op.elsewhere else ", ".join(op.devices)
        lines.append(f"| `{op.name}` | `{op.builder}` | {devices} | {op.summary} |")
    return "\n".join(lines) + "\n"
