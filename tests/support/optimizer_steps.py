"""Prints what each optimizer makes of its parameters, as JSON.

Inputs are made without torch's own kernels, which round differently on different CPUs.
"""

from __future__ import annotations

import json
from typing import Any

import torch


def made_up(number: int, size: int) -> torch.Tensor:
    return torch.tensor([((index * 7 + number * 13) % 29 - 14) / 16 for index in range(size)])


def trained(optimizer: type[torch.optim.Optimizer], dtype: torch.dtype = torch.float32, **options: Any) -> list[float]:
    parameters = [torch.nn.Parameter(made_up(0, size).to(dtype)) for size in (1003, 1, 64)]
    stepping: Any = optimizer(parameters, lr=0.03125, weight_decay=0.0625, **options)  # type: ignore[call-arg]
    for number in range(1, 4):
        for parameter in parameters:
            parameter.grad = made_up(number, parameter.numel()).to(dtype)
        stepping.step()
    return [value for parameter in parameters for value in parameter.detach().float().tolist()]


if __name__ == "__main__":
    assert torch.ones(3).add_(1).tolist() == [2.0, 2.0, 2.0]
    print("torch runs", flush=True)
    torch.set_num_threads(1)
    from op_builder import ops
    from op_builder.cpu import CPUAdamBuilder

    result = {
        "isa": CPUAdamBuilder().load().isa,
        "CPUAdam": trained(ops.CPUAdam),
        "CPUAdam, bfloat16": trained(ops.CPUAdam, torch.bfloat16),
        "CPUAdagrad": trained(ops.CPUAdagrad),
        "CPULamb": trained(ops.CPULamb),
        "CPULion": trained(ops.CPULion),
        "CPUSGD": trained(ops.CPUSGD, momentum=0.5),
        "FusedAdam": trained(ops.FusedAdam),
    }
    print(json.dumps(result))
