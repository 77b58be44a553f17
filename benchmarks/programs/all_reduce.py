"""One rank of an all-reduce benchmark: ``all_reduce.py CONTENDER RANK SIZE``, at MASTER_ADDR:MASTER_PORT.

The request ``{"bytes": n, "repeats": k}`` all-reduces a float32 tensor of n bytes k times; the answer is
``{"seconds": s}``. For DeepSpeed the interpreter need not have this project.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from answering import answer_requests

Reduce = Callable[[Any], object]
"""Adds up a tensor over all ranks, in place."""


def accel_ops(rank: int, size: int) -> tuple[Reduce, Callable[[int], Any]]:
    import torch

    from op_builder.cpu import ShareMemCommBuilder

    module = ShareMemCommBuilder().load()
    module.initialize(size, rank)
    return module.inference_all_reduce_, lambda numel: torch.empty(numel)


def symmetric(rank: int, size: int) -> tuple[Reduce, Callable[[int], Any]]:
    from op_builder.cpu import ShareMemCommBuilder

    group = ShareMemCommBuilder().load().new_group(size, rank, name="symmetric")
    return group.all_reduce, lambda numel: group.empty_symmetric((numel,))


def oneccl(rank: int, size: int) -> tuple[Reduce, Callable[[int], Any]]:
    import torch
    import torch.distributed as dist

    from op_builder.cpu import CCLCommBuilder

    module = CCLCommBuilder().load()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
    if rank == 0:
        store.set("address", bytes(module.get_kvs_addr(0)))
    module.initialize(size, rank, list(store.get("address")))
    group = list(range(size))
    return lambda tensor: module.all_reduce(tensor, dist.ReduceOp.SUM, group, False), lambda numel: torch.empty(numel)


def gloo(rank: int, size: int) -> tuple[Reduce, Callable[[int], Any]]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=size)
    return dist.all_reduce, lambda numel: torch.empty(numel)


def deepspeed(rank: int, size: int) -> tuple[Reduce, Callable[[int], Any]]:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from deepspeed.ops.op_builder import ShareMemCommBuilder

    ShareMemCommBuilder().load().initialize(size, rank)
    # The overload itself: torch need not choose one for each call.
    return torch.ops.deepspeed.inference_all_reduce_.default, lambda numel: torch.empty(numel)


CONTENDERS = {
    "accel-ops": accel_ops,
    "accel-ops, symmetric": symmetric,
    "gloo": gloo,
    "deepspeed": deepspeed,
    "oneccl": oneccl,
}


def main() -> None:
    contender, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_SIZE=str(size))

    def start() -> Callable[[dict[str, int]], dict[str, float]]:
        import torch

        torch.set_num_threads(1)
        reduce, make = CONTENDERS[contender](rank, size)
        tensors: dict[int, Any] = {}

        def answer(request: dict[str, int]) -> dict[str, float]:
            size_bytes = request["bytes"]
            if size_bytes not in tensors:
                tensors.clear()
                tensors[size_bytes] = make(size_bytes // 4)
            tensor = tensors[size_bytes]
            tensor.fill_(float(rank + 1))
            reduce(tensor)
            expected = size * (size + 1) / 2
            if not bool((tensor == expected).all()):
                raise SystemExit(f"{contender} sums {size_bytes} bytes to {tensor[:4].tolist()}, not to {expected}")
            tensor.zero_()
            reduce(tensor)  # the ranks start together
            started = time.perf_counter()
            for _ in range(request["repeats"]):
                reduce(tensor)
            return {"seconds": time.perf_counter() - started}

        return answer

    answer_requests(start)


main()
