"""The fused optimizers on a CUDA device: skipped where torch has none."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

from accelerator import get_accelerator, set_accelerator
from accelerator.cuda_accelerator import CUDA_Accelerator
from op_builder import cpu, cuda
from op_builder.errors import OpArgumentError
from op_builder.ops import FusedAdam, FusedLamb, FusedLion
from op_builder.ops.optim.fused_op import Control
from op_builder.ops.optim.tensor_lists import TensorLists
from op_builder.system import cpu_isa
from tests.support.adam_reference import Options, Tensors, random_tensors
from tests.support.fused_cases import CHUNK, lists_of, mixed_cases, positional
from tests.support.optimizer_reference import AMSGRAD, make_tensors

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# The kernels round as those CPU kernels do that have a fused multiply-add.
HAS_FMA = cpu_isa.supported_isas()[-1] != "baseline"


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


@pytest.fixture(scope="module")
def lion():
    return cuda.FusedLionBuilder().load()


@pytest.fixture(scope="module")
def lamb():
    return cuda.FusedLambBuilder().load()


def on_device(cases: list[Tensors]) -> list[Tensors]:
    """The cases on the device, as far behind an aligned address as on the CPU."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        offset = tensor.storage_offset()
        storage = torch.zeros(tensor.numel() + offset, dtype=tensor.dtype, device="cuda")
        storage[offset:].copy_(tensor)
        return storage[offset:]

    return [case.map(moved) for case in cases]


def assert_near(actual: list[Tensors], expected: list[Tensors], exact: bool) -> None:
    for case, wanted in zip(actual, expected, strict=True):
        for one, other in zip(case, wanted, strict=True):
            if exact:
                assert torch.equal(one.cpu(), other)
            else:
                torch.testing.assert_close(one.cpu(), other)


def many_cases() -> list[Tensors]:
    return [random_tensors(n % 300, seed=n) for n in range(2000)] + [random_tensors(3_000_001)]


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("mode", [0, 1])
def test_adam_gives_the_bits_of_the_cpu(adam, offset, mode):
    cases = [*mixed_cases(offset=offset), *many_cases()]
    device = on_device(cases)
    options = Options(adamw_mode=bool(mode))
    adam.multi_tensor_adam(
        CHUNK, torch.zeros(1, dtype=torch.int32, device="cuda"), lists_of(device), *positional(options)
    )
    cpu.FusedAdamBuilder().load().multi_tensor_adam(CHUNK, None, lists_of(cases), *positional(options))
    assert_near(device, cases, HAS_FMA)


@pytest.mark.parametrize("mode", [0, 1])
def test_amsgrad_gives_the_bits_of_the_cpu(mode):
    types = [(torch.float32,) * 3, (torch.bfloat16, torch.bfloat16, torch.float32), (torch.bfloat16,) * 3]
    cases = [make_tensors(AMSGRAD, n, *each, seed=n) for n in (0, 1, 17, 4097, 3_000_001) for each in types]
    device = [case.map(torch.Tensor.cuda) for case in cases]
    options = positional(Options(adamw_mode=bool(mode)))
    cuda.FusedAmsgradBuilder().load().multi_tensor_amsgrad(CHUNK, None, lists_of(device), *options)
    cpu.FusedAmsgradBuilder().load().multi_tensor_amsgrad(CHUNK, None, lists_of(cases), *options)
    for case, wanted in zip(device, cases, strict=True):
        for one, other in zip(case, wanted, strict=True):
            assert torch.equal(one.cpu(), other) or (not HAS_FMA and torch.allclose(one.cpu(), other))


def test_lion_gives_the_bits_of_the_cpu(lion):
    cases = [*mixed_cases(), *many_cases()]
    device = on_device(cases)
    for module, each in ((lion, device), (cpu.FusedLionBuilder().load(), cases)):
        module.multi_tensor_lion(CHUNK, None, lists_of(each)[:3], 1e-2, 0.9, 0.99, 1, 0.1)
    assert_near(device, cases, HAS_FMA)


def test_lamb_is_near_the_cpu_and_twice_the_same(lamb):
    cases = [*mixed_cases(), *many_cases()]
    device, again = on_device(cases), on_device(cases)
    numbers = (1e-2, 0.9, 0.999, 1e-6, 3, True, 0.01)
    for each in (device, again):
        lamb.multi_tensor_lamb(8192, None, lists_of(each), *numbers)
    cpu.FusedLambBuilder().load().multi_tensor_lamb(8192, None, lists_of(cases), *numbers)
    assert_near(device, cases, exact=False)
    for one, other in zip(device, again, strict=True):
        assert all(map(torch.equal, one, other))


def test_a_set_flag_changes_nothing(adam, lion, lamb):
    cases = mixed_cases()
    device = on_device(cases)
    flag = torch.ones(1, dtype=torch.int32, device="cuda")
    adam.multi_tensor_adam(CHUNK, flag, lists_of(device), *positional(Options()))
    lion.multi_tensor_lion(CHUNK, flag, lists_of(device)[:3], 1e-2, 0.9, 0.99, 1, 0.1)
    lamb.multi_tensor_lamb(CHUNK, flag, lists_of(device), 1e-2, 0.9, 0.999, 1e-6, 3, True, 0.01)
    assert_near(device, cases, exact=True)


def test_the_capturable_form_works_in_a_graph(adam):
    cases = [random_tensors(n, seed=n) for n in (5, 100_000)]
    device = on_device(cases)
    lr = torch.tensor(1e-2, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    step = torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adam.multi_tensor_adam_capturable(CHUNK, flag, lists_of(device), lr, 0.9, 0.999, 1e-8, step, 1, True, 0.01)
    assert float(step) == 0
    host = cpu.FusedAdamBuilder().load()
    done = 0
    for rate, skip in ((1e-2, 0), (1e-3, 0), (1e-3, 1), (1e-2, 0)):
        lr.fill_(rate)
        flag.fill_(skip)
        graph.replay()
        if not skip:
            done += 1
            rate32 = float(torch.tensor(rate))
            host.multi_tensor_adam(CHUNK, None, lists_of(cases), *positional(Options(step=done, lr=rate32)))
        assert float(step) == done
    assert_near(device, cases, exact=False)


@pytest.mark.parametrize("optimizer", [FusedAdam, functools.partial(FusedAdam, amsgrad=True), FusedLion, FusedLamb])
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
    cases = [random_tensors(100_000)]
    device = on_device(cases)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        adam.multi_tensor_adam(CHUNK, None, lists_of(device), *positional(Options()))
    torch.cuda.current_stream().wait_stream(stream)
    cpu.FusedAdamBuilder().load().multi_tensor_adam(CHUNK, None, lists_of(cases), *positional(Options()))
    assert_near(device, cases, HAS_FMA)


def test_new_gradients_in_every_update_give_the_bits_of_the_cpu(adam):
    cases = [random_tensors(n, seed=n) for n in (5, 1000, 0, 70_001)]
    moved = on_device(cases)
    host = cpu.FusedAdamBuilder().load()
    prepared = [
        module.prepare(
            TensorLists(
                [case.param for case in members],
                [case.grad for case in members],
                [[case.exp_avg for case in members], [case.exp_avg_sq for case in members]],
            ),
            [torch.zeros((), device=members[0].param.device) for _ in members],
        )
        for module, members in ((host, cases), (adam, moved))
    ]
    options = [1e-2, 0.9, 0.999, 1e-8, 0.01, 1.0, 1.0]
    for seed, dtype in enumerate([torch.float32, torch.bfloat16, torch.float16]):
        grads = [random_tensors(case.param.numel(), seed=seed + 7).grad.to(dtype) for case in cases]
        prepared[0].replace_grads(grads)
        prepared[1].replace_grads([grad.cuda() for grad in grads])
        for one in prepared:
            one.update(options, Control())
    assert_near(moved, cases, HAS_FMA)
    good = [case.grad for case in moved]
    for bad, text in (
        (torch.ones(999, device="cuda"), "grad of tensor 1 has 999 elements"),
        (torch.ones(1000, device="cuda").double(), "grad of tensor 1 is of type Double"),
        (moved[1].param, "grad of tensor 1 shares memory with its param"),
    ):
        prepared[1].replace_grads([good[0], bad, *good[2:]])
        with pytest.raises(OpArgumentError, match=text):
            prepared[1].update(options, Control())
    with pytest.raises(OpArgumentError, match="grad of tensor 1 is on device cpu, the first tensor on cuda:0"):
        prepared[1].replace_grads([good[0], cases[1].grad, *good[2:]])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_a_second_device_is_used_without_being_the_current_one(adam):
    case = random_tensors(1000)
    moved = case.map(lambda tensor: tensor.to("cuda:1"))
    adam.multi_tensor_adam(CHUNK, None, lists_of([moved]), *positional(Options()))
    cpu.FusedAdamBuilder().load().multi_tensor_adam(CHUNK, None, lists_of([case]), *positional(Options()))
    assert_near([moved], [case], HAS_FMA)
    assert torch.cuda.current_device() == 0
