"""Train the demo's model on several ranks: each takes its share of the batch, gradients are averaged.

    accel-launch --num_accelerators 2 --bind_cores_to_rank examples/train_ranks.py --steps 50
    python -m examples.train_ranks --steps 50          # one rank, which takes the whole batch: the same losses

The accelerator chooses the device and the communication backend. --losses FILE writes the loss of each step
as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for use as a script

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported later, it keeps the group alive to the end

from accelerator import get_accelerator
from examples.characters.model import CharacterTransformer, Shape
from examples.characters.text import batches, standard_library
from op_builder.ops import CPUAdam

LEARNING_RATE = 2e-3


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    accelerator = get_accelerator()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if options.batch_size % size:
        sys.exit(f"train_ranks: --batch_size {options.batch_size} cannot be divided by {size} ranks")
    if size > 1:
        dist.init_process_group(accelerator.communication_backend_name())
        accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    cpus = sorted(os.sched_getaffinity(0))
    threads = torch.get_num_threads()
    # In one write: print() makes two where output is unbuffered, and another rank's may come between.
    sys.stdout.write(f"rank {rank} of {size}: CPUs {cpus}, {threads} {'thread' if threads == 1 else 'threads'}\n")
    sys.stdout.flush()

    corpus = standard_library(size_bytes=200_000)
    torch.manual_seed(options.seed)  # the same parameters on every rank
    model = CharacterTransformer(Shape(alphabet=len(corpus.alphabet), width=64, layers=2)).to(accelerator.device())
    optimizer_class = CPUAdam if options.optimizer == "CPUAdam" else torch.optim.AdamW
    optimizer = optimizer_class(model.parameters(), lr=LEARNING_RATE)

    losses = []
    started = time.perf_counter()
    length = model.shape.context + 1
    for whole in batches(
        corpus.train, count=options.steps, batch_size=options.batch_size, length=length, seed=options.seed
    ):
        share = whole[rank::size].to(accelerator.device())
        loss = model.loss(share)
        loss.backward()
        mean_loss = loss.detach().clone()
        if size > 1:
            average([parameter.grad for parameter in model.parameters()], size)
            average([mean_loss], size)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean_loss.item())
    duration_s = time.perf_counter() - started
    if rank == 0:
        print(
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {options.steps} steps of {options.batch_size} texts, "
            f"{duration_s / options.steps * 1e3:.0f} ms each"
        )
        if options.losses is not None:
            options.losses.write_text(json.dumps(losses))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="training steps (default 50)")
    parser.add_argument(
        "--batch_size", type=int, default=16, help="texts in each step, for all ranks together (default: 16)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters and batches (default: 0)")
    parser.add_argument(
        "--optimizer", choices=("CPUAdam", "AdamW"), default="CPUAdam", help="optimizer (default: CPUAdam)"
    )
    parser.add_argument("--losses", type=Path, help="file to which rank 0 writes the loss of each step, as JSON")
    return parser.parse_args(arguments)


def average(tensors: list[torch.Tensor], size: int) -> None:
    """Replace each tensor by its mean over the ranks: one message for all of them."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= size
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


if __name__ == "__main__":
    sys.exit(main())
