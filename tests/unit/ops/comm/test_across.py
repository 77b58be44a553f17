"""Collectives between hosts: calls that differ, and oneCCL's failures, which only a stand-in for it can produce."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from op_builder.errors import CommunicationError
from op_builder.ops.comm.across import compare_calls
from op_builder.ops.comm.ccl_communicator import CCLWork, Communicator
from op_builder.ops.comm.hosts import Layout


class Threads:
    """Collectives between the threads of this process."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=60)
        self._tensors: dict[int, torch.Tensor] = {}

    def _all(self, tensor: torch.Tensor) -> dict[int, torch.Tensor]:
        self._barrier.wait()
        self._tensors[threading.get_ident()] = tensor.clone()
        self._barrier.wait()
        return dict(self._tensors)

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        assert op == "max"
        tensor.copy_(torch.stack([*self._all(tensor).values()]).amax(0))

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:  # noqa: ARG002
        tensor.copy_(torch.stack([*self._all(tensor).values()]).amax(0))  # all but the source's are zeros

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        (("barrier", "barrier"), None),
        (("x" * 600, "x" * 600), None),
        (("barrier", "all_reduce"), "Rank 0 called barrier, rank 1 called all_reduce."),
        (("x" * 600, "barrier"), f"Rank 0 called {'x' * 600}, rank 1 called barrier."),
        (("x" * 600 + "a", "x" * 600 + "b"), f"Rank 0 called {'x' * 600}a, rank 1 called {'x' * 512}."),
    ],
    ids=["equal", "equal and long", "different", "one is long", "different at the end"],
)
def test_an_error_shows_the_call_of_another_rank(calls: tuple[str, str], shown: str | None) -> None:
    across = Threads(2)
    with ThreadPoolExecutor(2) as pool:
        ranks = [
            pool.submit(compare_calls, across, Layout(rank, ((0,), (1,))), call) for rank, call in enumerate(calls)
        ]
    errors = [rank.exception() for rank in ranks]
    if shown is None:
        assert errors == [None, None]
    else:
        assert all(isinstance(error, CommunicationError) for error in errors)
        assert shown in str(errors[0])
        assert "Rank 1 called" in str(errors[1])
        assert "rank 0 called" in str(errors[1])


def test_a_work_that_has_failed_is_completed() -> None:
    def wait(number: int, timeout_ms: int) -> bool:  # noqa: ARG001
        raise RuntimeError("oneCCL: a peer is gone")

    failed = Communicator.failed
    comm: Any = SimpleNamespace(ops=SimpleNamespace(wait=wait), rank=0, size=2, timeout_s=1.0)
    comm.failed = lambda what, error: failed(comm, what, error)
    work = CCLWork(comm, 1, "all_reduce", torch.zeros(1), 1)
    assert work.is_completed()
    with pytest.raises(CommunicationError, match="a peer is gone"):
        work.wait()
