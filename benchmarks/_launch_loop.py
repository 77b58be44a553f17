"""A rank that multiplies matrices and all-reduces, a block of turns whenever it is told to.

In BENCHMARK_DIRECTORY ``go<number>`` holds the turns of a block, 0 for the end; rank 0 answers with
``done<number>``, each turn's seconds as JSON.
"""

import itertools
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

SIDE = 512
NUMEL = 1 << 20
PRODUCTS = 4
POLL_S = 0.01


def main() -> None:
    dist.init_process_group("gloo")
    matrix, gradients = torch.randn(SIDE, SIDE), torch.randn(NUMEL)
    for number in itertools.count():
        turns = wait_for_turns(number)
        if turns == 0:
            break
        seconds = []
        for turn in range(turns + turns // 10):
            begin = time.perf_counter()
            product = matrix
            for _ in range(PRODUCTS):
                product = torch.mm(matrix, product)
            dist.all_reduce(gradients)
            gradients /= dist.get_world_size()
            if turn >= turns // 10:  # before, caches warm up
                seconds.append(time.perf_counter() - begin)
        if dist.get_rank() == 0:
            answer(number, seconds)
    dist.barrier()
    dist.destroy_process_group()


def wait_for_turns(number: int) -> int:
    """What rank 0 finds, on all ranks; the others sleep in the collective."""
    found = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        go = Path(os.environ["BENCHMARK_DIRECTORY"], f"go{number}")
        while not go.exists():
            time.sleep(POLL_S)
        found[0] = int(go.read_text())
    dist.broadcast(found, 0)
    return int(found)


def answer(number: int, seconds: list[float]) -> None:
    directory = Path(os.environ["BENCHMARK_DIRECTORY"])
    (directory / "written").write_text(json.dumps(seconds))
    (directory / "written").rename(directory / f"done{number}")


main()
