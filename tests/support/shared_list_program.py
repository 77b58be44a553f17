"""Calls that free gradients while another thread's update reads them: each must wait for the end of the update.

An update of so many elements takes milliseconds, so a call that does not wait returns before the update has ended, or
frees memory that the update still reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from op_builder.cpu import CPUAdamBuilder
from op_builder.ops import CPUAdam
from op_builder.ops.optim.host_op import HostOp
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


def check_list(op: HostOp, name: str, *arguments: object) -> None:
    param = ones()
    shared = op.prepare(TensorLists([param], [ones()], [[ones()], [ones()]]), [torch.tensor(0.0)])
    options = [OPTIONS.get(name, 0.0) for name in op.options]
    check(param, lambda: shared.update(options, Pass()), lambda: getattr(shared, name)(*arguments))


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


if __name__ == "__main__":
    main()
