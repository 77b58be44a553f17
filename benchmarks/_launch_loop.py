"""A rank that multiplies matrices and all-reduces, over and over; rank 0 writes each turn's seconds as JSON."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SIDE = 512
NUMEL = 1 << 20
PRODUCTS = 4


def main() -> None:
    turns = int(sys.argv[1])
    dist.init_process_group("gloo")
    matrix, gradients = torch.randn(SIDE, SIDE), torch.randn(NUMEL)
    seconds = []
    for turn in range(turns + turns // 10):
        begin = time.perf_counter()
        product = matrix
        for _ in range(PRODUCTS):
            product = torch.mm(matrix, product)
        dist.all_reduce(gradients)
        gradients /= dist.get_world_size()
        if turn >= turns // 10:  # before, caches and connections warm up
            seconds.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        Path(os.environ["BENCHMARK_DIRECTORY"], "turns.json").write_text(json.dumps(seconds))
    dist.destroy_process_group()


main()
