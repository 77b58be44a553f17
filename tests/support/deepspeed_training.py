"""A program that trains small models with DeepSpeed and prints the losses and what DeepSpeed used, one JSON object.

Args: ``before`` or ``after`` for the place of the line that switches it to this library, ``variable`` for
ACCEL_DEEPSPEED=1 in the environment, ``own`` for neither; then a JSON list of runs. A run is an object with

    stage, dtype, optimizer, parameters   of ZeRO; where the last two are: "none", "cpu" or "nvme"
    nvme         the directory of that memory
    zenflow      whether optimizer steps overlap with the next forward pass
    save, load   a directory: a checkpoint is written there after STEPS steps; read from there, MORE steps follow
    universal    whether ``load`` is a universal checkpoint

It prints the losses of each run, one for each step.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

STEPS, MORE = 20, 5
ARGUMENTS = sys.argv[1:]
if __name__ == "__main__" and ARGUMENTS[0] == "before":
    import op_builder.integrations.deepspeed  # noqa: F401
import deepspeed  # noqa: E402
import torch  # noqa: E402

RANK = int(os.environ["RANK"])


def configuration(run: dict[str, Any]) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": run["stage"]}
    for what in ("optimizer", "parameters"):
        device = run.get(what, "none")
        if device != "none":
            settings: dict[str, Any] = {"device": device}
            if device == "nvme":
                settings |= {"nvme_path": run["nvme"], "buffer_count": 5}
            if what == "parameters":
                settings |= {"buffer_size": 100_000}
            zero["offload_param" if what == "parameters" else "offload_optimizer"] = settings
    if run["stage"] == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "sub_group_size": 5000}
    if run.get("zenflow"):
        zero["zenflow"] = {
            "topk_ratio": 0.1,
            "select_strategy": "step",
            "select_interval": 10,
            "update_interval": 2,
            "overlap_step": True,
            "steps_per_epoch": 10,
        }
    return {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}},
        "zero_optimization": zero,
        "bf16": {"enabled": run["dtype"] == "bf16"},
        "aio": {"block_size": 65536, "queue_depth": 8, "intra_op_parallelism": 1},
        "checkpoint": {"load_universal": run.get("universal", False)},
    }


def train(run: dict[str, Any]) -> list[float]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64, bias=False), torch.nn.Tanh(), torch.nn.Linear(64, 32, bias=False)]
    engine, *_ = deepspeed.initialize(model=torch.nn.Sequential(*layers), config=configuration(run))
    if "load" in run:
        path, _ = engine.load_checkpoint(run["load"])
        assert path is not None
    losses = []
    for step in range(STEPS if "load" in run else 0, STEPS + MORE):
        torch.manual_seed(1000 * RANK + step)
        batch = torch.rand(4, 32, dtype=torch.bfloat16 if run["dtype"] == "bf16" else torch.float32)
        loss = (engine(batch).float() - 1).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if step == STEPS - 1 and "save" in run:
            engine.save_checkpoint(run["save"])
    engine.destroy()
    gc.collect()
    return losses


def shared_memory_calls() -> list[int]:
    """A list that grows with each all-reduce of this library's shm_comm."""
    from op_builder.ops.comm.shm_comm import ShareMemCommModule

    calls: list[int] = []
    reduce = ShareMemCommModule.inference_all_reduce_

    def counted(self: Any, tensor: torch.Tensor) -> torch.Tensor:
        calls.append(tensor.numel())
        return reduce(self, tensor)

    ShareMemCommModule.inference_all_reduce_ = counted  # type: ignore[method-assign]
    return calls


def summed(dtype: torch.dtype) -> float:
    """The first element of an all-reduce of DeepSpeed for inference, of 1 + RANK."""
    total = torch.full((1000,), RANK + 1.0, dtype=dtype)
    deepspeed.comm.inference_all_reduce(total)
    return float(total[0])


def main(how: str, runs: list[dict[str, Any]]) -> None:
    if how == "after":
        import op_builder.integrations.deepspeed  # noqa: F401
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.adam import cpu_adam

    calls = [] if how == "own" else shared_memory_calls()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    losses = [train(run) for run in runs]
    calls.clear()
    found = {
        "losses": losses,
        "sums": [summed(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)],
        "accelerator": type(get_accelerator()).__module__,
        "adam": cpu_adam.CPUAdamBuilder.__module__,
        "calls": calls,
    }
    if how != "own":
        from op_builder.integrations.deepspeed import off

        off()
        found["sum_after_off"] = summed(torch.float32)
        found["accelerator_after_off"] = type(get_accelerator()).__module__
    print(json.dumps(found), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(ARGUMENTS[0], json.loads(ARGUMENTS[1]))
