"""Where the small states of an optimizer lie."""

from __future__ import annotations

import copy
import io
import multiprocessing
from multiprocessing.connection import Connection

import pytest
import torch

from op_builder.ops import CPUAdam
from op_builder.ops.optim.small_tensors import SmallTensors


def test_a_saved_state_is_no_larger_than_its_tensor() -> None:
    param = torch.nn.Parameter(torch.ones(10))
    made = CPUAdam([param])
    param.grad = torch.ones(10)
    made.step()
    file = io.BytesIO()
    torch.save(made.state[param]["exp_avg"], file)
    assert file.tell() < 4096
    assert copy.deepcopy(made.state[param]["exp_avg"]).untyped_storage().nbytes() == 40


def add_ones(tensor: torch.Tensor, answers: Connection) -> None:
    tensor.add_(1)
    answers.send(tensor.tolist())


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_child_process_has_memory_of_its_own() -> None:
    tensor = SmallTensors().copy(torch.zeros(3))
    context = multiprocessing.get_context("fork")
    answers, given = context.Pipe(duplex=False)
    child = context.Process(target=add_ones, args=(tensor, given))
    child.start()
    assert answers.recv() == [1.0, 1.0, 1.0]
    child.join(60)
    assert tensor.tolist() == [0.0, 0.0, 0.0]
