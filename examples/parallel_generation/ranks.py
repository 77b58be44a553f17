"""Start ranks that generate text together, and return the result."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from examples.characters.model import CharacterTransformer
from examples.parallel_generation.decoder import write


@dataclass(frozen=True)
class Task:
    """What to generate: a trained model, the beginnings of the texts, and the number of characters to add."""

    model: CharacterTransformer
    starts: torch.Tensor
    length: int

    @property
    def characters(self) -> int:
        """The characters to generate in all texts."""
        return self.starts.shape[0] * self.length


@dataclass(frozen=True)
class Written:
    """The texts and the time they took; ``collectives`` describes who did how many all-reduces."""

    texts: torch.Tensor
    duration_s: float
    collectives: str


def write_alone(task: Task) -> Written:
    """Generate in this process."""
    write(task.model, task.starts, 2, 0, 1, lambda _: None)  # warms up
    started = time.perf_counter()
    texts = write(task.model, task.starts, task.length, 0, 1, lambda _: None)
    return Written(texts, time.perf_counter() - started, "")


def write_together(task: Task, size: int, backend: str) -> Written:
    """Generate in ``size`` processes with a backend of torch.distributed; return rank 0's result.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a rank failed.
    """
    with tempfile.TemporaryDirectory() as name:
        torch.save((task.model.shape, task.model.state_dict(), task.starts, task.length), Path(name) / "task")
        torch.multiprocessing.spawn(_run_rank, (size, backend, name), nprocs=size)
        texts, duration_s, collectives = torch.load(Path(name) / "written")
    return Written(texts, duration_s, collectives)


def _run_rank(rank: int, size: int, backend: str, directory: str) -> None:
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    if backend == "accel":
        import op_builder.ops.distributed  # noqa: F401  (registers it)
    store = dist.FileStore(str(Path(directory) / "store"), size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    shape, state, starts, length = torch.load(Path(directory) / "task", weights_only=False)
    model = CharacterTransformer(shape)
    model.load_state_dict(state)
    write(model, starts, 2, rank, size, dist.all_reduce)
    dist.barrier()
    started = time.perf_counter()
    texts = write(model, starts, length, rank, size, dist.all_reduce)
    duration_s = time.perf_counter() - started
    if rank == 0:
        torch.save((texts, duration_s, _who_reduced(backend)), Path(directory) / "written")
    dist.barrier()
    dist.destroy_process_group()


def _who_reduced(backend: str) -> str:
    if backend != "accel":
        return backend
    from op_builder.ops.distributed import collective_counts

    counts = collective_counts()
    return f"{counts.ours.get('allreduce', 0)} all-reduces in shared memory, {counts.gloo.get('allreduce', 0)} by gloo"
