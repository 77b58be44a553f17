"""Training by torch's own means on several ranks: what the ranks of test_distributed.py run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functions
from torch.nn.parallel import DistributedDataParallel

import op_builder.ops.distributed as accel
from tests.support.distributed_programs import start, stop
from tests.support.sharded_optimizer_programs import fsdp2, network, tensor_parallel, train

STEPS = 6


def adamw_losses(model: torch.nn.Module, seed: int) -> list[float]:
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), STEPS, first=1000 * seed)


def run(rank: int, size: int, directory: str, backend: str) -> dict[str, Any]:
    """The losses of each way, and how often the group did what."""
    start(backend, rank, size, directory)
    result: dict[str, Any] = {"losses": {}, "ours": {}, "gloo": {}}
    before: dict[str, dict[str, int]] = {"ours": {}, "gloo": {}}

    def note(name: str, losses: list[float]) -> None:
        result["losses"][name] = losses
        if backend == "accel":
            counts = accel.collective_counts()
            for kind, now in (("ours", dict(counts.ours)), ("gloo", dict(counts.gloo))):
                result[kind][name] = {key: now[key] - before[kind].get(key, 0) for key in now}
                before[kind] = now

    # Each rank has its own data: the losses agree only if the gradients were averaged.
    note("ddp", adamw_losses(DistributedDataParallel(network(), bucket_cap_mb=0.01), seed=rank))
    note("fsdp2", adamw_losses(fsdp2(size, network()), seed=rank))
    # Tensor-parallel ranks share their data.
    note("tensor parallel", adamw_losses(tensor_parallel(size, network()), seed=0))
    stop()
    return result


def compiled(rank: int, size: int, directory: str) -> dict[str, Any]:
    """Functional collectives in a whole compiled graph."""
    start("accel", rank, size, directory)
    group = dist.group.WORLD
    assert group is not None

    def layer(x: torch.Tensor) -> torch.Tensor:
        total = functions.all_reduce(x.sin(), "sum", group)
        return functions.all_gather_tensor(total * 2, 0, group)

    x = torch.full((4,), float(rank))
    once = torch.compile(layer, fullgraph=True)(x)
    assert torch.allclose(once, layer(x))
    counts = accel.collective_counts()
    stop()
    return {"ours": dict(counts.ours), "gloo": dict(counts.gloo)}
