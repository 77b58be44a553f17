"""Training by torch's own means on several ranks: what the ranks of test_distributed_training.py run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import op_builder.ops.distributed as accel
from tests.support.distributed_programs import start, stop

STEPS = 6


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(24, 96)
        self.down = nn.Linear(96, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x)))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Mlp(), Mlp(), nn.LayerNorm(24))


def train(model: nn.Module, seed: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(8, 24, generator=generator)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


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
    note("ddp", train(DistributedDataParallel(network(), bucket_cap_mb=0.01), seed=rank))
    sharded = network()
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    note("fsdp2", train(sharded, seed=rank))
    mesh = init_device_mesh("cpu", (size,))
    split = network()
    plan = {
        f"{layer}.{part}": style()
        for layer in (0, 1)
        for part, style in (("up", ColwiseParallel), ("down", RowwiseParallel))
    }
    parallelize_module(split, mesh, plan)
    # Tensor-parallel ranks share their data.
    note("tensor parallel", train(split, seed=0))
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
