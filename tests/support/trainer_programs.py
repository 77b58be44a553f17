"""What each rank of a test with Hugging Face's Trainer and Accelerator runs."""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist

from op_builder.ops import CPUAdam
from op_builder.ops.distributed import AccelProcessGroup, collective_counts


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(self.linear.weight, 0.1)
        torch.nn.init.constant_(self.linear.bias, 0.0)

    def forward(self, data: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(data)
        return {"loss": torch.nn.functional.mse_loss(logits, labels), "logits": logits}


def train(rank: int, size: int, directory: str, backend: str) -> dict[str, Any]:
    """Make the group first, as the documentation says, then let Trainer and Accelerator find it."""
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    dist.init_process_group(backend, init_method=f"file://{directory}/store-{backend}", rank=rank, world_size=size)
    options = TrainingArguments(
        output_dir=f"{directory}/{backend}",
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
    )
    model = Model()
    optimizer = CPUAdam(model.parameters(), lr=1e-2)
    inputs = torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
    regression = [{"data": data, "labels": data.sum().reshape(1)} for data in inputs]
    trainer = Trainer(model, options, train_dataset=regression, optimizers=(optimizer, None))
    trainer.train()
    is_accel = isinstance(dist.group.WORLD, AccelProcessGroup)
    found = {
        "backend": dist.get_backend(),
        "ranks": Accelerator(cpu=True).num_processes,
        "parameters": [p.tolist() for p in model.parameters()],
        "shared_memory": sum(collective_counts().ours.values()) if is_accel else 0,
    }
    # DDP's reducer, in the trainer, holds the group. If it were the last to do so, it would wait with the GIL held for
    # gloo's thread, which may be waiting for the GIL to free the barrier's tensors.
    del trainer, optimizer, model
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    return found
