"""Train with DeepSpeed on one rank and print, as one JSON line, the seconds of the start and of each later step.

    deepspeed_start.py STARTED OFFLOAD WIDTH STEPS DIRECTORY

STARTED is the time at which this process was started, in seconds since the epoch; the start ends with the first step.
OFFLOAD is cpu (ZeRO stage 2, the optimizer's states) or nvme (stage 3, states and parameters, below DIRECTORY). The
model is 8 layers of WIDTH x WIDTH. Whether DeepSpeed uses this project is up to ACCEL_DEEPSPEED.
"""

import itertools
import json
import os
import sys
import time

import deepspeed
import torch

LAYERS, BATCH = 8, 4


def configuration(offload, width, directory):
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    if offload == "nvme":
        place = {"device": "nvme", "nvme_path": directory, "buffer_count": LAYERS}
        zero = {"stage": 3, "offload_optimizer": place, "offload_param": {**place, "buffer_size": width * width}}
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": zero,
        "bf16": {"enabled": True},
    }


def main(started, offload, width, steps, directory):
    width = int(width)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    engine, *_ = deepspeed.initialize(model=model, config=configuration(offload, width, directory))
    batch, ends = torch.rand(BATCH, width, dtype=torch.bfloat16), []
    for _ in range(int(steps) + 1):
        loss = engine(batch).float().square().mean()
        engine.backward(loss)
        engine.step()
        ends.append(time.time())
    seconds = [end - begin for begin, end in itertools.pairwise(ends)]
    print(json.dumps({"start_s": ends[0] - float(started), "steps_s": seconds}), flush=True)
    torch.distributed.destroy_process_group()


main(*sys.argv[1:])
