"""Programs of two ranks for test_distributed.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from op_builder.errors import CommunicationError, OpArgumentError
from op_builder.ops.distributed import collective_counts
from tests.support import distributed_programs
from tests.support.distributed_programs import start, stop

DOUBLE = torch.float64


class Named(torch.Tensor):
    """A subclass over plain memory."""


def any_layout(rank: int, size: int, directory: str) -> bool:
    """Collectives of tensors that are not contiguous leave the memory between their elements as it was.

    Most are of a type or an operation that gloo runs, and are counted for it.
    """
    start("accel", rank, size, directory)

    def strided(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.full((8,), -7, dtype=dtype)
        base[::2] = torch.arange(4) + rank + 1
        return base, base[::2]

    def require(base: torch.Tensor, values: list[float]) -> None:
        assert base[::2].tolist() == values, base
        assert base[1::2].tolist() == [-7] * 4, base

    for dtype in (DOUBLE, torch.int64, torch.float32):
        base, view = strided(dtype)
        dist.all_reduce(view, dist.ReduceOp.PRODUCT)
        require(base, [2, 6, 12, 20])
    sums, even = [3, 5, 7, 9], torch.arange(8, dtype=DOUBLE)[::2]
    columns = [torch.full((4, 2), float(other), dtype=DOUBLE)[:, 0] for other in range(size)]
    cases: list[tuple[Callable[[torch.Tensor], object], list[float]]] = [
        (lambda view: dist.all_reduce(view, async_op=True).wait(), sums),
        (lambda view: dist.all_reduce_coalesced([view[:2], view[2:]]), sums),
        (lambda view: dist.reduce(view, 1), sums),
        (lambda view: dist.scatter(view, columns if rank == 1 else None, 1), [rank] * 4),
        (lambda view: dist.all_to_all_single(view, even + 10 * rank), [4 * rank + n for n in (0, 2, 10, 12)]),
        (lambda view: dist.reduce_scatter(view, columns), [rank * size] * 4),
    ]
    for number, (call, expected) in enumerate(cases):
        base, view = strided(DOUBLE)
        call(view)
        if number != 2 or rank == 1:  # only one rank has the result of reduce()
            require(base, expected)
    parts = [strided(DOUBLE) for _ in range(size)]
    dist.gather(columns[rank], [view for _, view in parts] if rank == 0 else None)
    if rank == 0:
        for other, (base, _) in enumerate(parts):
            require(base, [other] * 4)
    values = torch.zeros(4, dtype=torch.complex64)
    dist.broadcast(values.conj().imag if rank == 1 else torch.arange(4.0), 0)  # a lazy negation
    assert values.imag.tolist() == ([0, -1, -2, -3] if rank == 1 else [0] * 4)
    base, view = strided(DOUBLE)
    negative = torch._neg_view(view)  # holds the negation of what it shows
    dist.all_reduce(negative, dist.ReduceOp.MAX)
    assert view.tolist() == [1, 2, 3, 4]
    for dtype in (torch.float32, DOUBLE):
        with pytest.raises(OpArgumentError, match="share memory"):
            dist.all_reduce(torch.zeros(2, 1, dtype=dtype).expand(2, 3))
        unchanged = torch.full((3,), 9, dtype=dtype)
        with pytest.raises(OpArgumentError, match="share memory"):
            dist.all_gather([unchanged, torch.zeros(1, dtype=dtype).expand(3)], torch.ones(3, dtype=dtype))
        assert unchanged.tolist() == [9, 9, 9]
    received = torch.zeros(4)
    with pytest.raises(OpArgumentError, match="not contiguous"):
        dist.recv(torch.zeros(8)[::2], 1 - rank)
    if rank == 0:
        dist.send(torch.arange(8.0)[::2], 1)
    else:
        dist.recv(received, 0)
        assert received.tolist() == [0, 2, 4, 6]
    assert {"allreduce", "gather", "scatter", "reduce"} <= set(collective_counts().gloo)  # not covered
    stop()
    return True


def subclasses(rank: int, size: int, directory: str) -> dict[str, Any]:
    """A subclass over plain memory is plain, on one rank or on all."""
    start("accel", rank, size, directory)
    for everywhere in (False, True):
        tensor = torch.full((4,), rank + 1.0)
        given = tensor.as_subclass(Named) if rank == 0 or everywhere else tensor
        dist.all_reduce(given)
        assert tensor.tolist() == [3] * 4
        rows = [torch.zeros(4) for _ in range(size)]
        dist.all_gather(rows, given)
        assert torch.equal(torch.stack(rows), torch.full((size, 4), 3.0))
        base = torch.arange(8.0) * rank
        dist.broadcast(base[::2].as_subclass(Named), 1)
        assert base.tolist() == ([0, 0, 2, 0, 4, 0, 6, 0] if rank == 0 else list(range(8)))
    parameter = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert parameter.tolist() == [2] * 3
    gloo = dict(collective_counts().gloo)
    stop()
    return gloo


MISMATCHES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "empty": (lambda: dist.all_reduce(torch.zeros(0)), lambda: dist.all_reduce(torch.full((2,), 100.0))),
    "empty gather": (
        lambda: dist.all_gather([torch.zeros(0)] * 2, torch.zeros(0)),
        lambda: dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.ones(2)),
    ),
    "no tensors": (
        lambda: dist.group.WORLD.allreduce_coalesced([]).wait(),  # type: ignore[union-attr]
        lambda: dist.group.WORLD.allreduce_coalesced([torch.ones(2)]).wait(),  # type: ignore[union-attr]
    ),
    "type": (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(3, dtype=DOUBLE))),
    "type of moved": (
        lambda: dist.broadcast(torch.ones(3), 0),
        lambda: dist.broadcast(torch.ones(3, dtype=torch.int32), 0),
    ),
    "operation": (
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.PRODUCT),
    ),
    "size by gloo": (
        lambda: dist.all_reduce(torch.ones(3, dtype=DOUBLE)),
        lambda: dist.all_reduce(torch.ones(4, dtype=DOUBLE)),
    ),
    "layout": (lambda: dist.all_reduce(torch.ones(3).to_sparse()), lambda: dist.all_reduce(torch.ones(3))),
    "root": (lambda: dist.reduce(torch.ones(3), 0), lambda: dist.reduce(torch.ones(3), 1)),
    "collective": (
        lambda: dist.all_to_all_single(torch.zeros(2), torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
    ),
    "new group": (
        lambda: dist.barrier(dist.new_group([0, 1])),
        lambda: dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1])),
    ),
}


def several(rank: int, size: int, directory: str, names: list[str]) -> dict[str, Any]:
    return distributed_programs.several(rank, size, directory, names, globals())


def mismatches(rank: int, size: int, directory: str, name: str = "") -> dict[str, str]:
    """What each rank raises when the calls differ. On one host the group stays usable."""
    start("accel", rank, size, directory)
    raised = {}
    for each in [name] if name else MISMATCHES:
        try:
            MISMATCHES[each][rank]()
            raised[each] = "nothing"
        except CommunicationError as error:
            raised[each] = str(error)
        if not name:
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [size] * 2, each
    if not name:
        dist.barrier()
    dist.destroy_process_group()
    return raised


def power_sgd(rank: int, size: int, directory: str, backend: str) -> list[float]:
    """The losses of DDP with torch's PowerSGD hook, whose callbacks run collectives."""
    start(backend, rank, size, directory)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    )
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    del model, optimizer, loss
    stop()
    return losses


def thread_state(rank: int, size: int, directory: str) -> bool:
    """What the group's threads run has the grad mode, inference mode, autocast and default device of the caller."""
    start("accel", rank, size, directory)

    def state(_: object = None) -> list[Any]:
        return [
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            str(torch.empty(0).device),
            torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(),
        ]

    def run_all(dtype: torch.dtype) -> None:
        base = torch.ones(8, dtype=dtype, device="cpu")
        parts = list(torch.zeros(2, 8, dtype=dtype, device="cpu")[:, ::2].unbind())
        works = [
            dist.all_reduce(base[::2], async_op=True),
            dist.all_gather(parts, torch.ones(4, dtype=dtype, device="cpu"), async_op=True),
            dist.broadcast(base[1::2], 1, async_op=True),
            dist.reduce_scatter(parts[0], [torch.ones(4, dtype=dtype, device="cpu")] * 2, async_op=True),
        ]
        seen = works[-1].get_future().then(state).wait()
        assert seen == state(), (seen, state())
        for work in works:
            work.wait()
        assert base.tolist() == [2, 1] * 4
        assert parts[0].tolist() == [2] * 4
        assert parts[1].tolist() == [1] * 4

    for dtype in (torch.float32, DOUBLE):
        for mode in (torch.inference_mode(), torch.device("meta"), torch.autocast("cpu", torch.bfloat16)):
            with mode:
                run_all(dtype)
    torch.set_default_dtype(torch.bfloat16)
    run_all(torch.float32)
    torch.set_default_dtype(torch.float32)
    stop()
    return True
