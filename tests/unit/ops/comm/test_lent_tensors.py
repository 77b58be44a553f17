"""Tensors lent to gloo stay with their owner until C++ has dropped them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Work

from op_builder.ops.comm.gloo import GlooCollectives, LentTensors, has_ended


def test_a_tensor_is_kept_until_nothing_outside_python_holds_it() -> None:
    lent, mine = LentTensors(), torch.arange(3.0)
    held: list[Any] = []

    def start(tensors: Any) -> Work:
        weight = torch.ones(3, requires_grad=True)
        held.append(weight * tensors[0])  # the graph holds it in C++, as a thread of gloo does
        tensors[0] += 1
        return Work()

    lent.lend([mine], start)
    assert mine.tolist() == [1, 2, 3]
    assert not lent.are_back_by(time.monotonic())
    held.clear()
    assert lent.are_back_by(time.monotonic())


def test_a_tensor_that_its_owner_shares_is_not_waited_for() -> None:
    lent, mine = LentTensors(), torch.arange(3.0)
    graph = torch.ones(3, requires_grad=True) * mine
    lent.lend([mine], lambda _: Work())
    assert lent.are_back_by(time.monotonic())
    del graph


def test_a_barrier_which_has_no_tensors_is_waited_for() -> None:
    class Barrier(Work):
        is_over = False

        def is_completed(self) -> bool:
            return self.is_over

    lent, barrier = LentTensors(), Barrier()
    lent.lend([], lambda _: barrier)
    assert not lent.are_back_by(time.monotonic())
    barrier.is_over = True
    assert lent.are_back_by(time.monotonic())


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter"])  # torch's reduce_scatter is never completed
def test_gloo_gives_all_tensors_back_at_once(name: str) -> None:
    store = dist.HashStore()
    gloo = GlooCollectives(store, 0, 1, dist.ProcessGroupGloo(store, 0, 1))
    given = ([[torch.ones(2)]],) if name == "reduce_scatter" else ()
    gloo.run(name, ([torch.zeros(2)], *given), {})
    assert gloo.finishes_by(time.monotonic() + 10)


@pytest.mark.parametrize("seconds", [0.0, 0.6])
def test_a_wait_that_ends_early_has_failed_and_one_that_times_out_has_not_ended(seconds: float) -> None:
    class Failing(Work):
        def wait(self, _timeout: timedelta = timedelta()) -> bool:
            time.sleep(seconds)
            raise RuntimeError("the connection was closed")

        def is_completed(self) -> bool:
            return False

    if seconds:
        assert not has_ended(Failing())
    else:
        with pytest.raises(RuntimeError, match="closed"):
            has_ended(Failing())
