"""A training script written for CUDA, with a fallback to the CPU. Compare it with after.py.

python examples/porting/before.py [--steps 20]          one process
torchrun --nproc-per-node 2 examples/porting/before.py  data parallel
"""

import argparse
import gc
import json
import os
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported later, it keeps the group alive to the end
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class CharacterModel(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embedding(characters))[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    use_cuda = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if use_cuda:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    is_distributed = "WORLD_SIZE" in os.environ
    if is_distributed:
        dist.init_process_group("nccl" if use_cuda else "gloo")
    rank = dist.get_rank() if is_distributed else 0

    torch.manual_seed(7)
    if use_cuda:
        torch.cuda.manual_seed_all(7)
    model: nn.Module = CharacterModel().to(device)
    if is_distributed:
        model = DistributedDataParallel(model, device_ids=[local_rank] if use_cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dtype = torch.bfloat16 if not use_cuda or torch.cuda.is_bf16_supported() else torch.float16
    scaler = torch.amp.GradScaler("cuda" if use_cuda else "cpu", enabled=dtype is torch.float16)

    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    picks = torch.Generator().manual_seed(100 + rank)
    losses = []
    if use_cuda:
        torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
    else:
        begun = time.perf_counter()
    for _ in range(options.steps):
        if use_cuda:
            torch.cuda.nvtx.range_push("step")
        starts = torch.randint(len(text) - 33, (16,), generator=picks)
        batch = torch.stack([text[start : start + 33] for start in starts.tolist()])
        if use_cuda:
            batch = batch.pin_memory()
        batch = batch.to(device, non_blocking=True)
        with torch.autocast("cuda" if use_cuda else "cpu", dtype=dtype):
            logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        if use_cuda:
            torch.cuda.nvtx.range_pop()
    if use_cuda:
        end.record()
        torch.cuda.synchronize()
        milliseconds = begin.elapsed_time(end)
        peak_bytes = torch.cuda.max_memory_allocated()
    else:
        milliseconds = (time.perf_counter() - begun) * 1e3
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    if rank == 0:
        results = {"losses": [loss.item() for loss in losses], "milliseconds": milliseconds, "peak_bytes": peak_bytes}
        print(json.dumps(results))
    if is_distributed:
        # Free the model first: DistributedDataParallel must not hold its group last (docs/distributed.md).
        del model, optimizer, logits, loss
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
