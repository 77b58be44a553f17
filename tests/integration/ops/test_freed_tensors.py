"""Tensors whose storage was freed, strided ones too: reading their elements would end the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from accelerator.cpu_accelerator import CPU_Accelerator
from op_builder import env
from op_builder.cpu import PinMemoryBuilder
from op_builder.errors import OpArgumentError
from op_builder.ops.functional.block_quantize import BlockQuantizeModule
from op_builder.ops.functional.packbits import SignBitsModule, SyclBitsModule
from op_builder.ops.functional.rms_norm import RMSNormModule
from op_builder.ops.functional.utils import FlatModule
from op_builder.ops.io.checkpoint import CheckpointReader, CheckpointWriter
from op_builder.ops.io.tensor_store import TensorStore
from tests.support.files import freed

OPS = SimpleNamespace()  # refused before a kernel is asked for
ONES = torch.ones(8)


def pin_natively(tensor: torch.Tensor) -> None:
    with env.scope(DS_PIN_MEMORY_BACKEND="native"):
        CPU_Accelerator().pin_memory(tensor)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "quantize": BlockQuantizeModule(OPS).quantize_blocks,
    "dequantize": lambda x: BlockQuantizeModule(OPS).dequantize_blocks(x, ONES, (8,)),
    "dequantize scales": lambda x: BlockQuantizeModule(OPS).dequantize_blocks(ONES, x, (8,)),
    "rms_norm": lambda x: RMSNormModule(OPS).rms_norm(x, ONES),
    "rms_norm weight": lambda x: RMSNormModule(OPS).rms_norm(ONES, x),
    "rms_norm residual": lambda x: RMSNormModule(OPS).rms_norm(ONES, ONES, residual=x),
    "pack": SyclBitsModule(OPS).pack,
    "unpack": SyclBitsModule(OPS).unpack,
    "packbits of SYCL": lambda x: SyclBitsModule(OPS).packbits(x, 8),
    "unpackbits of SYCL": lambda x: SyclBitsModule(OPS).unpackbits(x, 8),
    "packbits": lambda x: SignBitsModule().packbits(x, 8),
    "unpackbits": lambda x: SignBitsModule().unpackbits(x, 8),
    "flatten": lambda x: FlatModule().flatten([ONES, x]),
    "pin_memory": lambda x: PinMemoryBuilder().load().pin_memory(x),
    "pin_memory, native": pin_natively,
}


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_a_function_refuses_them(name: str, step: int) -> None:
    dtype = torch.uint8 if "pack" in name else torch.float32
    with pytest.raises(OpArgumentError, match="freed or shrunk"):
        CALLS[name](freed(torch.ones(8 * step, dtype=dtype)[::step]))


@pytest.mark.parametrize("step", [1, 2])
def test_a_store_and_a_checkpoint_refuse_them(tmp_path: Path, step: int) -> None:
    store = TensorStore(tmp_path / "store")
    store.save("x", ONES)
    dcp.save({"x": ONES}, storage_writer=CheckpointWriter(tmp_path / "saved"), no_dist=True)
    for call in (
        lambda x: store.save("y", x),
        lambda x: store.load("x", out=x),
        lambda x: dcp.save({"x": x}, storage_writer=CheckpointWriter(tmp_path / "new"), no_dist=True),
        lambda x: dcp.load({"x": x}, storage_reader=CheckpointReader(tmp_path / "saved"), no_dist=True),
    ):
        with pytest.raises((OpArgumentError, CheckpointException), match="freed or shrunk"):
            call(freed(torch.ones(8 * step)[::step]))
