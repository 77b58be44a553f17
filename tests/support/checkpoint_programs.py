"""What the ranks of test_checkpoint.py run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from op_builder.ops import CheckpointReader, CheckpointWriter
from tests.support.distributed_programs import start, stop
from tests.support.sharded_optimizer_programs import fsdp2, network, train

SHAPES = {"tall": (1031, 700), "flat": (2, 9), "scalar": (), "line": (7,), "single": (1, 5)}


def placements(name: str, kind: str) -> list[Placement]:
    if kind == "replicated" or not SHAPES[name]:
        return [Replicate()]
    return [Shard(len(SHAPES[name]) - 1 if kind == "columns" else 0)]


def sharded(size: int, kind: str, seed: int) -> dict[str, Any]:
    """The same tensors for each number of ranks, sharded by rows or columns, or not; zeros for seed 0."""
    mesh = dist.init_device_mesh("cpu", (size,))
    torch.manual_seed(seed)
    full = {name: torch.randn(shape) * bool(seed) for name, shape in SHAPES.items()}
    return {name: distribute_tensor(value, mesh, placements(name, kind)) for name, value in full.items()}


def save(rank: int, size: int, directory: str, path: str, kind: str) -> None:
    start("gloo", rank, size, directory)
    dcp.save({"state": sharded(size, kind, 1), "step": 5}, storage_writer=CheckpointWriter(path))
    stop()


def load(rank: int, size: int, directory: str, path: str, kind: str, seed: int = 1) -> None:
    start("gloo", rank, size, directory)
    state = {"state": sharded(size, kind, 0), "step": 0}
    dcp.load(state, storage_reader=CheckpointReader(path))
    assert state["step"] == 4 + seed
    for name, expected in sharded(size, kind, seed).items():
        value = state["state"][name]
        assert isinstance(value, DTensor)
        assert torch.equal(value.to_local(), expected.to_local()), name
    stop()


def resume(rank: int, size: int, directory: str, old: str | None, new: str | None) -> list[float]:
    """The losses of FSDP2 and AdamW: from the checkpoint ``old``, if any; with a save to ``new`` after three steps."""
    start("gloo", rank, size, directory)
    model = fsdp2(size, network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [] if old else train(model, optimizer, 3)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    if old:
        dcp.load(states, storage_reader=CheckpointReader(old))
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    elif new:
        group = dist.new_group()  # as the training uses the other one meanwhile
        saving: Any = dcp.async_save(states, storage_writer=CheckpointWriter(new), process_group=group)
        losses += train(model, optimizer, 3, first=3)  # changes all tensors meanwhile
        saving.result()
    if not new:
        losses += train(model, optimizer, 3, first=3)
    stop()
    return losses


def failing(rank: int, size: int, directory: str, path: str) -> list[str]:
    """A rank cannot save: the error on each rank."""
    start("gloo", rank, size, directory)
    state: dict[str, Any] = {"x": torch.ones(4), f"own{rank}": torch.ones(2).to_sparse() if rank else torch.ones(2)}
    try:
        dcp.save(state, storage_writer=CheckpointWriter(path))
    except CheckpointException as error:
        stop()
        return [f"{type(one).__name__}: {one}" for one, _ in error.failures.values()]
    raise AssertionError("the save succeeded")


def killed(rank: int, size: int, directory: str, path: str, step: str) -> None:
    """All ranks are killed while rank 1 writes, or before the coordinator publishes or removes the old files."""
    start("gloo", rank, size, directory)

    def die(*_: Any) -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if step == "writing" and rank == 1:
        os.fsync = die
    elif step == "publishing":
        os.replace = die
    elif step == "removing":
        Path.unlink = die  # type: ignore[method-assign]
    dcp.save({"state": sharded(size, "rows", 2), "step": 6}, storage_writer=CheckpointWriter(path))
