"""A rank that multiplies matrices and all-reduces, in blocks of turns.

In BENCHMARK_DIRECTORY the file ``request<number>`` contains the turns of a block, or 0 to end; rank 0 answers with
``answer<number>``, the seconds of each turn as JSON.
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
DIRECTORY = Path(os.environ["BENCHMARK_DIRECTORY"])


def main() -> None:
    dist.init_process_group("gloo")
    matrix, gradients = torch.randn(SIDE, SIDE), torch.randn(NUMEL)
    for number in itertools.count():
        turns = wait_for_turns(number)
        if turns == 0:
            break
        warm_up = turns // 10
        seconds = []
        for _ in range(warm_up + turns):
            started = time.perf_counter()
            product = matrix
            for _ in range(PRODUCTS):
                product = torch.mm(matrix, product)
            dist.all_reduce(gradients)
            gradients /= dist.get_world_size()
            seconds.append(time.perf_counter() - started)
        if dist.get_rank() == 0:
            (DIRECTORY / "partial").write_text(json.dumps(seconds[warm_up:]))
            (DIRECTORY / "partial").rename(DIRECTORY / f"answer{number}")
    dist.barrier()
    dist.destroy_process_group()


def wait_for_turns(number: int) -> int:
    """Wait for a request; rank 0 reads it, the others sleep in the collective."""
    turns = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        request = DIRECTORY / f"request{number}"
        while not request.exists():
            time.sleep(POLL_S)
        turns[0] = int(request.read_text())
    dist.broadcast(turns, 0)
    return int(turns)


main()
