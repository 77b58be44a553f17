"""Moments in fewer bits train as well as float32 moments: short versions of benchmarks.convergence."""

from __future__ import annotations

import pytest
import torch

from benchmarks import convergence
from op_builder.ops import CPUAdam

FLOAT32, STOCHASTIC, PACKED, NEAREST = convergence.STORAGES
SEEDS = (0,)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that losses are the same on every machine with this instruction set
    yield
    torch.set_num_threads(before)


def final_losses(task: convergence.Task, storage: convergence.Storage, steps: int) -> convergence.Result:
    return convergence.run_task(task, storage, steps, SEEDS, lambda: None)


@pytest.fixture(scope="module")
def function_results() -> dict[str, convergence.Result]:
    task = convergence.TASKS[1]
    return {storage.name: final_losses(task, storage, task.steps) for storage in convergence.STORAGES}


def test_all_storages_but_the_control_are_choices_of_cpu_adam() -> None:
    assert [(one.optimizer, one.states) for one in convergence.STORAGES if one is not NEAREST] == [
        (CPUAdam, "float32"),
        (CPUAdam, "bfloat16"),
        (CPUAdam, "8bit"),
    ]
    param = torch.nn.Parameter(torch.ones(300))
    kept = []
    for storage in convergence.STORAGES:
        optimizer = storage.make_optimizer([param], lr=0.1, seed=0)
        param.grad = torch.rand(300)
        optimizer.step()
        kept.append([entry for name, entry in optimizer.state[param].items() if name.startswith("exp_avg")])
    float32, scaled = {torch.float32}, {torch.uint8, torch.float32}
    assert [{entry.dtype for entry in entries} for entries in kept] == [float32, {torch.bfloat16}, scaled, float32]
    assert all(torch.equal(entry, entry.bfloat16().float()) for entry in kept[-1])


@pytest.mark.parametrize("storage", [STOCHASTIC, PACKED], ids=lambda storage: storage.name)
def test_a_function_is_fitted_as_well_as_with_float32_moments(function_results, storage):
    reference = function_results[FLOAT32.name]
    assert max(reference.final) < 2e-3 * min(losses[0] for losses in reference.losses)
    # Measured: within 1 % with bfloat16, 3 to 8 % below with 8 bits. A kernel that rounds to nearest ends a third
    # higher with bfloat16 and, because its steps are too large, at half the loss with 8 bits.
    above = function_results[storage.name].above(reference)
    assert max(above) <= 0.05
    assert min(above) >= (-0.15 if storage is PACKED else -0.05)


def test_bfloat16_moments_rounded_to_nearest_fit_it_worse(function_results):
    """The reason for stochastic rounding. Measured: a third higher for each seed."""
    assert min(function_results[NEAREST.name].above(function_results[FLOAT32.name])) >= 0.15
