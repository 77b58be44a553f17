"""The ops that are Python code on torch, through their builders."""

from __future__ import annotations

import pytest
import torch

from op_builder import env
from op_builder.catalog.registry import OUR_PACKAGES, find_builder
from op_builder.errors import IncompatibleOpError, OpArgumentError
from tests.support.builds import built_by_command, row_of

pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.mark.parametrize("package", OUR_PACKAGES)
def test_they_load_everywhere_and_are_never_compiled(package: str) -> None:
    builder = find_builder("UtilsBuilder", package)()
    with env.scope(ACCEL_JIT="0"):
        row = row_of(builder)
        assert (row.compatible, row.reason) == (True, "")
        assert builder.load() is builder.jit_load()
    for build in (builder.plan, builder.builder):
        with pytest.raises(IncompatibleOpError, match="no binary"):
            build()
    (outcome,) = built_by_command([builder], ["utils"])
    assert outcome.status == "skipped"


def test_many_tensors_become_one_and_come_back_as_views() -> None:
    utils = find_builder("UtilsBuilder", "op_builder.cpu")().load()
    tensors = [torch.rand(2, 3), torch.rand(0), torch.rand(4)]
    flat = utils.flatten(tensors)
    assert flat.shape == (10,)
    parts = utils.unflatten(flat, tensors)
    assert all(torch.equal(part, tensor) for part, tensor in zip(parts, tensors, strict=True))
    parts[2].fill_(7)
    assert flat[6:].eq(7).all()
    as_bytes = utils.cast_to_byte_tensor(tensors[0])
    assert (as_bytes.dtype, as_bytes.shape, as_bytes.data_ptr()) == (torch.uint8, (24,), tensors[0].data_ptr())
    assert [each.numel() for each in utils.cast_to_byte_tensor(tensors)] == [24, 0, 16]


def test_signs_become_bits_and_come_back() -> None:
    bits = find_builder("PackbitsBuilder", "op_builder.cpu")().load()
    values = torch.tensor([1.0, -2.0, 0.0, -0.5, 3.0, 4.0, -1.0, -1.0, -5.0, 6.0])
    packed = bits.packbits(values, 10, 0)
    assert packed.tolist() == [0b10101100, 0b01000000]
    assert bits.unpackbits(packed, 2, 0)[:10].tolist() == [1, -1, 1, -1, 1, 1, -1, -1, -1, 1]
    for call in (lambda: bits.packbits(values, 11, 0), lambda: bits.unpackbits(packed, 3, 0)):
        with pytest.raises(OpArgumentError, match="size is"):
            call()
