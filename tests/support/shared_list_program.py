"""Calls that meet another thread's update of the same list: each must wait for the end of the update.

An update of so many elements takes milliseconds, so a call that does not wait returns before the update has ended,
frees memory that the update still reads, or, as a second update, mixes old values with new ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from op_builder.cpu import CPUAdamBuilder
from op_builder.ops import CPUAdam
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.native_op import PreparedList
from op_builder.ops.optim.tensor_lists import Pass, TensorLists

COUNT = 1 << 24
ROUNDS = 3  #: on a busy machine a call may come too late to find a running update
OPTIONS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def ones() -> torch.Tensor:
    return torch.ones(COUNT)


def check(param: torch.Tensor, update: Callable[[], object], free: Callable[[], object]) -> None:
    thread = threading.Thread(target=update)
    thread.start()
    while float(param[0]) == 1 and thread.is_alive():
        pass
    free()
    assert param.max() < 1, "the call did not wait for the update"
    thread.join()


def prepared(op: HostOp, param: torch.Tensor) -> tuple[PreparedList, Callable[[], object]]:
    """A list with that parameter, and a function that updates it."""
    shared = op.prepare(TensorLists([param], [ones()], [[ones()], [ones()]]), [torch.tensor(0.0)])
    options = [OPTIONS.get(name, 0.0) for name in op.options]
    return shared, lambda: shared.update(options, Pass())


def check_list(op: HostOp, name: str, *arguments: object) -> None:
    param = ones()
    shared, update = prepared(op, param)
    check(param, update, lambda: getattr(shared, name)(*arguments))


def check_updaters(op: HostOp) -> None:
    params = [ones(), ones()]
    for param in params:
        _, update = prepared(op, param)
        threads = [threading.Thread(target=update) for _ in range(2)]
        for thread in threads:
            thread.start()
            if param is params[0]:  # one after the other
                thread.join()
        for thread in threads:
            thread.join()
    assert torch.equal(*params), "two updates ran at once"


def check_optimizer() -> None:
    param = torch.nn.Parameter(ones())
    optimizer = CPUAdam([param])
    param.grad = ones()
    check(param.detach(), optimizer.step, optimizer.zero_grad)


def main() -> None:
    op = CPUAdamBuilder().load()
    for _ in range(ROUNDS):
        check_list(op, "release_grads")
        check_list(op, "replace_grads", [ones()])
        check_optimizer()
        check_updaters(op)


if __name__ == "__main__":
    main()
