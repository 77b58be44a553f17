from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import op_builder
from accelerator import get_accelerator, set_accelerator
from accelerator.cpu_accelerator import CPU_Accelerator
from op_builder import all_ops
from op_builder.ops import CPUAdam


class TheirAccelerator(CPU_Accelerator):
    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder.cpu"

    def get_op_builder(self, class_name: str) -> Any:
        raise AssertionError(f"DeepSpeed is asked for {class_name}")


@pytest.fixture
def theirs() -> Iterator[None]:
    before = get_accelerator()
    set_accelerator(TheirAccelerator())
    yield
    set_accelerator(before)


@pytest.mark.usefixtures("theirs")
def test_this_librarys_ops_work_where_the_accelerator_is_deepspeeds() -> None:
    assert op_builder.CPUAdamBuilder.NAME == "cpu_adam"
    assert all_ops.ALL_OPS["cpu_adam"].NAME == "cpu_adam"
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    CPUAdam([param], lr=0.5).step()
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.5))
