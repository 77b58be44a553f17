"""Adam on devices without kernels of this project: the vendor's function, or torch's functions."""

from __future__ import annotations

import copy
import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from op_builder.errors import IncompatibleOpError, OpArgumentError
from op_builder.host import FusedAdamBuilder
from op_builder.ops import FusedAdam
from op_builder.ops.optim.vendor_adam import VendorAdam

NUMBERS = (0.01, 0.9, 0.99, 1e-8)


@pytest.fixture
def adam() -> VendorAdam:
    return FusedAdamBuilder().load()


def make_lists(dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    types = (dtype, dtype, torch.float32, torch.float32)
    return [[torch.rand(n, generator=generator).to(each) for n in (1, 17)] for each in types]


def on_device(device: str) -> Any:
    """A tensor of a vendor's device, as far as the op looks at it."""
    return SimpleNamespace(device=SimpleNamespace(type=device))


@pytest.mark.parametrize("mode", [0, 1])
def test_torch_code_equals_torchs_optimizers(adam: VendorAdam, mode: int) -> None:
    grads, params, exp_avgs, exp_avg_sqs = make_lists()
    twins = [torch.nn.Parameter(param.clone()) for param in params]
    kind = torch.optim.AdamW if mode else torch.optim.Adam
    optimizer = kind(twins, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1, foreach=False)
    for twin, grad, m, v in zip(twins, grads, exp_avgs, exp_avg_sqs, strict=True):
        twin.grad = grad.clone()
        optimizer.state[twin] = {"step": torch.tensor(4.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.step()
    adam.multi_tensor_adam(2048, None, [grads, params, exp_avgs, exp_avg_sqs], *NUMBERS, 5, mode, True, 0.1)
    for param, twin, m in zip(params, twins, exp_avgs, strict=True):
        torch.testing.assert_close(param, twin.detach(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(m, optimizer.state[twin]["exp_avg"], rtol=1e-6, atol=1e-7)


def test_a_set_flag_skips_and_bad_arguments_are_refused(adam: VendorAdam) -> None:
    lists = make_lists(torch.bfloat16)
    before = copy.deepcopy(lists)
    adam.multi_tensor_adam(2048, torch.ones(1, dtype=torch.int32), lists, *NUMBERS, 1, 1, True, 0.1)
    for wrong, step, mode, weight_decay in (
        (lists[:3], 1, 1, 0.1),
        ([*lists[:3], lists[3][:1]], 1, 1, 0.1),
        (lists, 1, 2, 0.1),
        (lists, 0, 1, 0.1),
        (lists, 1.5, 1, 0.1),
        (lists, 1, 1, -0.1),
    ):
        with pytest.raises(OpArgumentError):
            adam.multi_tensor_adam(2048, None, wrong, *NUMBERS, step, mode, True, weight_decay)
    assert all(map(torch.equal, itertools.chain(*lists), itertools.chain(*before)))


@pytest.mark.parametrize(("device", "namespace"), [("mlu", "torch_mlu"), ("sdaa", "sdaa")])
def test_the_vendors_function_gets_the_lists(
    adam: VendorAdam, device: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    fake = SimpleNamespace(fused_adam=lambda *given: calls.append(given))
    monkeypatch.setattr(torch.ops, namespace, fake, raising=False)
    flag = torch.zeros(1, dtype=torch.int32)
    lists = [[on_device(device)] for _ in range(4)]
    adam.multi_tensor_adam(2048, flag, lists, *NUMBERS, 3, 1, True, 0.1)
    assert calls == [(flag, *lists, *NUMBERS, 3, 1, True, 0.1)]


def test_the_npus_function_gets_powers_of_the_steps_before(adam: VendorAdam, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    vendor = ModuleType("torch_npu")
    vendor.npu_apply_adam_w = lambda *given, out: calls.append((*given, out))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", vendor)
    grad, param, m, v = (on_device("npu") for _ in range(4))
    lists = [[grad], [param], [m], [v]]
    adam.multi_tensor_adam(2048, None, lists, *NUMBERS, 3, 1, True, 0.1)
    adam.multi_tensor_adam(2048, None, lists, *NUMBERS, 3, 1, False, 0.1)
    expected = (0.01, 0.1, 0.9, 0.99, 1e-8, grad, None, False, False, (param, m, v))
    assert calls == [(0.9**2, 0.99**2, *expected), (0.0, 0.0, *expected)]


def test_the_optimizer_class_needs_a_native_op() -> None:
    class OnThatDevice(FusedAdam):
        def _load(self) -> Any:
            return FusedAdamBuilder().load()

    with pytest.raises(IncompatibleOpError, match="needs a native op"):
        OnThatDevice([torch.nn.Parameter(torch.zeros(3))])
