"""The fused optimizers in CUDA's graphs, streams and front ends; their bits are tested in test_fused_update.py."""

from __future__ import annotations

import copy

import pytest
import torch

from accelerator import get_accelerator, set_accelerator
from accelerator.cuda_accelerator import CUDA_Accelerator
from op_builder import cuda
from op_builder.errors import OpArgumentError
from op_builder.ops import FusedAdam, FusedLamb, FusedLion
from op_builder.ops.optim.fused_op import Control
from tests.support.fused_cases import apply
from tests.support.optimizer_reference import ADAM, as_lists, load_fused, make_tensors
from tests.support.training_tensors import Tensors

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def accelerator():
    """The front ends ask the current accelerator for their builders; for these tests it is CUDA's."""
    before = get_accelerator()
    set_accelerator(CUDA_Accelerator())
    yield
    set_accelerator(before)


@pytest.fixture(scope="module")
def adam():
    return cuda.FusedAdamBuilder().load()


def on_device(cases: list[Tensors], device: str = "cuda") -> list[Tensors]:
    return [case.map(lambda tensor: tensor.to(device)) for case in cases]


def assert_near(actual: list[Tensors], expected: list[Tensors]) -> None:
    for case, wanted in zip(actual, expected, strict=True):
        for one, other in zip(case, wanted, strict=True):
            torch.testing.assert_close(one.cpu(), other)


def test_the_capturable_form_works_in_a_graph(adam):
    cases = [make_tensors(ADAM, n, seed=n) for n in (5, 100_000)]
    device = on_device(cases)
    lr = torch.tensor(1e-2, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    step = torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        apply(adam, ADAM, device, flag, lr=lr, step=step)
    assert float(step) == 0
    host = load_fused(ADAM)
    done = 0
    for rate, skip in ((1e-2, 0), (1e-3, 0), (1e-3, 1), (1e-2, 0)):
        lr.fill_(rate)
        flag.fill_(skip)
        graph.replay()
        if not skip:
            done += 1
            apply(host, ADAM, cases, step=done, lr=float(torch.tensor(rate)))
        assert float(step) == done
    assert_near(device, cases)


@pytest.mark.parametrize("optimizer", [FusedAdam, FusedLion, FusedLamb])
def test_a_whole_step_is_captured_and_replayed(optimizer):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, device="cuda")
    twin = copy.deepcopy(model)
    inputs = torch.randn(8, 64, device="cuda")
    captured, plain = optimizer(model.parameters(), lr=1e-2), optimizer(twin.parameters(), lr=1e-2)

    def train(one, made):
        made.zero_grad(set_to_none=False)
        one(inputs).square().mean().backward()
        made.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train(model, captured)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train(model, captured)
    for _ in range(4):
        graph.replay()
    for _ in range(7):
        train(twin, plain)
    torch.testing.assert_close(model.weight, twin.weight)
    assert float(captured.state[model.weight]["step"]) == 7


def test_a_grad_scaler_waits_for_nothing():
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = FusedAdam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    before = None
    for poison in (0.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 64, device="cuda")).sum() + poison * model.weight.sum() * 0).backward()
        if poison:
            model.weight.grad[0, 0] = poison
            before = model.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(model.weight, before)
    assert float(optimizer.state[model.weight]["step"]) == 1


def test_results_do_not_depend_on_the_stream(adam):
    cases = [make_tensors(ADAM, 100_000)]
    device = on_device(cases)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        apply(adam, ADAM, device)
    torch.cuda.current_stream().wait_stream(stream)
    apply(load_fused(ADAM), ADAM, cases)
    assert_near(device, cases)


def test_new_gradients_that_do_not_fit_are_refused(adam):
    cases = on_device([make_tensors(ADAM, n, seed=n) for n in (5, 1000, 0, 70_001)])
    prepared = adam.prepare(as_lists(cases), [torch.zeros((), device="cuda") for _ in cases])
    options = [float(value) for value in ADAM.options.values()]
    good = [case.grad for case in cases]
    for bad, text in (
        (torch.ones(999, device="cuda"), "grad of tensor 1 has 999 elements"),
        (torch.ones(1000, device="cuda").double(), "grad of tensor 1 is of type Double"),
        (cases[1].param, "grad of tensor 1 shares memory with its param"),
    ):
        prepared.replace_grads([good[0], bad, *good[2:]])
        with pytest.raises(OpArgumentError, match=text):
            prepared.update(options, Control())
    with pytest.raises(OpArgumentError, match="device cpu"):
        prepared.replace_grads([good[0], cases[1].grad.cpu(), *good[2:]])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_a_second_device_is_used_without_being_the_current_one(adam):
    cases = [make_tensors(ADAM, 1000)]
    device = on_device(cases, "cuda:1")
    apply(adam, ADAM, device)
    apply(load_fused(ADAM), ADAM, cases)
    assert_near(device, cases)
    assert torch.cuda.current_device() == 0
