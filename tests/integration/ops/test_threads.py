"""Eight threads use the ops at the same time. On a free-threaded Python nothing but the ops' own care protects them."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder
from op_builder.ops import CPUAdam, CPULion, FusedAdam
from tests.support.optimizer_cases import make_params, run
from tests.support.threads import in_threads

THREADS = 8


def trained(optimizer: type[torch.optim.Optimizer], number: int) -> list[torch.Tensor]:
    """Parameters after some steps; ``number`` seeds the gradients."""
    params = make_params()
    run(optimizer(params, lr=1e-2), params, 5, first=number)
    return [param.detach() for param in params]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded Python")
def test_no_op_enables_the_gil() -> None:
    for builder in (CPUAdamBuilder, AsyncIOBuilder, ShareMemCommBuilder):
        builder().load()
    is_gil_enabled = sys._is_gil_enabled  # type: ignore[attr-defined]
    assert not is_gil_enabled()


@pytest.mark.parametrize("optimizer", [CPUAdam, CPULion, FusedAdam])
def test_optimizers_in_threads_compute_what_they_compute_alone(optimizer: type[torch.optim.Optimizer]) -> None:
    alone = [trained(optimizer, number) for number in range(THREADS)]

    def work(number: int) -> None:
        assert all(map(torch.equal, trained(optimizer, number), alone[number]))

    in_threads(THREADS, work)


def test_threads_update_through_one_op() -> None:
    op = CPUAdamBuilder().load()

    def work(number: int) -> None:
        for _ in range(50):
            param, grad, first, second = torch.ones(9), torch.ones(9), torch.zeros(9), torch.zeros(9)
            op.create_adam(1000 + number)
            op.adam_update(1000 + number, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, param, grad, first, second)
            op.destroy_adam(1000 + number)
            torch.testing.assert_close(param, torch.full((9,), 0.9))

    in_threads(THREADS, work)


def test_threads_share_a_handle_of_async_io(tmp_path: Path) -> None:
    handle = AsyncIOBuilder().load().aio_handle()

    def work(number: int) -> None:
        for turn in range(10):
            data = torch.full((5000 + turn,), number + 1, dtype=torch.uint8)
            handle.pwrite(data, tmp_path / str(number), False, False)
            back = torch.empty_like(data)
            handle.read(back, tmp_path / str(number), False)
            assert torch.equal(back, data)

    in_threads(THREADS, work)
    assert handle.wait() == 0
