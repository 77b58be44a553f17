"""The training script of before.py, ported to any device: it names none.

python examples/porting/after.py [--steps 20]                one process
accel-launch --num_accelerators 2 examples/porting/after.py  data parallel; torchrun works too
"""

import argparse
import gc
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported later, it keeps the group alive to the end
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerator import get_accelerator


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

    accelerator = get_accelerator()
    accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = torch.device(accelerator.current_device_name())
    is_distributed = "WORLD_SIZE" in os.environ
    if is_distributed:
        dist.init_process_group(accelerator.communication_backend_name())
    rank = dist.get_rank() if is_distributed else 0

    torch.manual_seed(7)
    accelerator.manual_seed_all(7)
    model: nn.Module = CharacterModel().to(device)
    if is_distributed:
        model = DistributedDataParallel(model, device_ids=None if device.index is None else [device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    is_half = not accelerator.is_bf16_supported() and accelerator.is_fp16_supported()
    dtype = torch.float16 if is_half else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=is_half)

    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    picks = torch.Generator().manual_seed(100 + rank)
    losses = []
    accelerator.reset_peak_memory_stats()
    begin, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    begin.record()
    for _ in range(options.steps):
        accelerator.range_push("step")
        starts = torch.randint(len(text) - 33, (16,), generator=picks)
        batch = torch.stack([text[start : start + 33] for start in starts.tolist()])
        batch = accelerator.pin_memory(batch).to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype in accelerator.supported_dtypes()):
            logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        accelerator.range_pop()
    end.record()
    accelerator.synchronize()
    milliseconds = begin.elapsed_time(end)
    peak_bytes = accelerator.max_memory_allocated()

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
