"""Steps of one optimizer on a model that FSDP2 splits over two ranks: prints JSON with rank 0's seconds and bytes.

sharded_steps.py CONTENDER STEPS

Each step gets new gradients. The resident set is that after a tenth of the steps and after all of them.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from benchmarks.programs.training_memory import resident
from op_builder.ops import CPUAdam

LAYERS, WIDTH = 80, 512  # 21 M parameters in 160 tensors
CONTENDERS = {
    "accel-ops": CPUAdam,
    "accel-ops, 8-bit": lambda params: CPUAdam(params, states="8bit"),
    "torch foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    "torch fused": lambda params: torch.optim.AdamW(params, fused=True),
}


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def run(rank, contender, steps, meeting):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{meeting}")
    model = fully_shard(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    params = list(model.parameters())
    optimizer = CONTENDERS[contender](params)
    seconds, resident_bytes = [], []
    for step in range(steps):
        for param in params:
            param.grad = torch.full_like(param, 1e-3)
        distributed.barrier()
        started = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
        optimizer.zero_grad()
        if step + 1 in (steps // 10, steps):
            resident_bytes.append(resident("VmRSS"))
    states = [local(value).nbytes for state in optimizer.state.values() for value in state.values()]
    if rank == 0:
        print(json.dumps({"seconds": statistics.median(seconds), "states": sum(states), "resident": resident_bytes}))
    distributed.barrier()
    distributed.destroy_process_group()


def main():
    contender, steps = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        other = os.fork()
        run(int(other == 0), contender, steps, Path(directory) / "meeting")
        if other == 0:
            os._exit(0)
        os.waitpid(other, 0)


if __name__ == "__main__":
    main()
