"""Adam steps in another process, by the functions that DeepSpeed's ZenFlow calls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.multiprocessing

from op_builder.cpu import CPUAdamBuilder
from op_builder.errors import OpArgumentError
from op_builder.ops.optim.zenflow import MAX_GROUPS
from tests.support.foreign_package import output_of

ID = 4711
OPTIONS = (0.1, 0.9, 0.99, 1e-8, 0.01, True)  # lr, beta1, beta2, eps, weight_decay, bias_correction
WAIT_S = 120.0


@pytest.fixture
def adam() -> Iterator[Any]:
    """The op with an optimizer."""
    op = CPUAdamBuilder().load()
    op.create_adam(ID)
    yield op
    op.destroy_adam(ID)


def make_group(dtype: torch.dtype, numel: int) -> list[torch.Tensor]:
    """Parameter, gradients, first and second moments, and the copy: in shared memory."""
    values = torch.linspace(-1, 1, numel)
    made = [values, values * 3, values.square() + 0.5, *(torch.zeros(numel) for _ in range(4)), torch.ones(numel)]
    return [each.to(dtype).share_memory_() for each in made]


def run_worker(groups: list[list[torch.Tensor]], control: torch.Tensor, cpus: list[int]) -> None:
    adam = CPUAdamBuilder().load()
    adam.create_adam(ID)
    handle = adam.zenflow_adam_create(ID, cpus)
    for group in groups:
        adam.zenflow_adam_register_group(handle, *group)
    adam.zenflow_adam_run_worker(handle, control.data_ptr())
    adam.zenflow_adam_destroy(handle)
    adam.destroy_adam(ID)
    assert not cpus or os.sched_getaffinity(0) == {*cpus}


def new_control(adam: Any, groups: int) -> torch.Tensor:
    control = torch.full((adam.zenflow_adam_ctrl_size(),), 255, dtype=torch.uint8).share_memory_()
    adam.zenflow_adam_ctrl_init(control.data_ptr(), groups)
    return control


def submit(adam: Any, control: torch.Tensor, state: int, step: int, groups: int) -> None:
    adam.zenflow_adam_submit(control.data_ptr(), state, step, *([option] * groups for option in OPTIONS))


def test_another_process_makes_the_same_steps(adam: Any) -> None:
    groups = [make_group(torch.float32, 100_003), make_group(torch.bfloat16, 7)]
    expected = [[tensor.clone() for tensor in group] for group in groups]
    control = new_control(adam, len(groups))
    cpus = [min(os.sched_getaffinity(0))]
    worker = torch.multiprocessing.get_context("spawn").Process(target=run_worker, args=(groups, control, cpus))
    worker.start()
    try:
        for step in (1, 2, 3):
            state = step % 2
            submit(adam, control, state, step, len(groups))
            assert adam.zenflow_adam_wait(control.data_ptr(), WAIT_S)
            for group, right in zip(groups, expected, strict=True):
                adam.adam_update(ID, step, *OPTIONS, right[0], *right[1 + state : 7 : 2])
                right[7].copy_(right[0])
                assert all(map(torch.equal, group, right))
        # The worker makes a submitted step before it ends, also without a wait.
        submit(adam, control, 0, 4, len(groups))
        adam.zenflow_adam_ctrl_exit(control.data_ptr())
        worker.join(WAIT_S)
        assert worker.exitcode == 0
    finally:
        worker.kill()
    assert adam.zenflow_adam_wait(control.data_ptr(), 0.0)
    assert not adam.zenflow_adam_wait(control.data_ptr(), 0.01)
    for group, right in zip(groups, expected, strict=True):
        assert torch.equal(group[4], right[4])  # the first moment that the fourth step does not use
        assert not torch.equal(group[0], right[0])
        assert torch.equal(group[7], group[0])


def test_a_worker_ends_when_its_trainer_was_killed() -> None:
    output_of("-m", "tests.support.orphaned_worker")  # the worker keeps the pipe open: this returns when it has ended


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda adam, _: adam.zenflow_adam_create(ID + 1, []), f"No Adam optimizer with id {ID + 1}"),
        (lambda adam, at: adam.zenflow_adam_run_worker(77, at), "No worker has the handle 77"),
        (lambda adam, at: adam.zenflow_adam_ctrl_init(at, 0), "groups is 0"),
        (lambda adam, at: adam.zenflow_adam_ctrl_init(at, MAX_GROUPS + 1), f"groups is {MAX_GROUPS + 1}"),
        (lambda adam, at: adam.zenflow_adam_submit(at, 2, 1, *([o] for o in OPTIONS)), "now_state is 2"),
        (lambda adam, at: adam.zenflow_adam_submit(at, 0, 1, *([o, o] for o in OPTIONS)), "there are 1 groups"),
        (lambda adam, at: adam.zenflow_adam_submit(at, 0, 1, [-1.0], *([o] for o in OPTIONS[1:])), "lr is -1"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_submitted(adam: Any, call: Any, text: str) -> None:
    control = new_control(adam, 1)
    with pytest.raises(OpArgumentError, match=text):
        call(adam, control.data_ptr())
    assert not adam.zenflow_adam_wait(control.data_ptr(), 0.0)


def test_a_worker_must_have_all_groups_of_its_control_block(adam: Any) -> None:
    control, group = new_control(adam, 2), make_group(torch.float32, 4)
    handle = adam.zenflow_adam_create(ID, [])
    with pytest.raises(OpArgumentError, match="stale has 3 elements"):
        adam.zenflow_adam_register_group(handle, *group[:7], group[7][:3])
    adam.zenflow_adam_register_group(handle, *group)
    with pytest.raises(OpArgumentError, match="control block 2"):
        adam.zenflow_adam_run_worker(handle, control.data_ptr())
    adam.zenflow_adam_destroy(handle)
    with pytest.raises(OpArgumentError, match="No worker"):
        adam.zenflow_adam_run_worker(handle, control.data_ptr())
