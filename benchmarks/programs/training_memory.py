"""The memory of training with one way of updating: prints JSON with bytes and seconds.

training_memory.py WAY LAYERS WIDTH

The C library must return large blocks to the system at once (MALLOC_MMAP_THRESHOLD_), so that the process's memory is
that of its tensors.
"""

import json
import sys
import time
from pathlib import Path

import torch

from op_builder.ops import CPUAdam

STEPS = 3
ROWS = 4  # of a batch: few, so that activations take little memory


def resident(name):
    """Bytes of this process's memory: VmRSS now, VmHWM at most since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {name}.")


def torch_in_backward(params):
    """torch's recipe: an optimizer for each parameter, called by a hook."""
    optimizers = {param: torch.optim.AdamW([param], fused=True) for param in params}

    def update(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in params:
        param.register_post_accumulate_grad_hook(update)


def with_bfloat16_gradients(params):
    for param in params:
        param.grad_dtype = torch.bfloat16
    return CPUAdam(params)


WAYS = {
    "torch, step()": lambda params: torch.optim.AdamW(params, fused=True),
    "torch, a hook for each parameter": torch_in_backward,
    "accel-ops, step()": CPUAdam,
    "accel-ops, bfloat16 gradients": with_bfloat16_gradients,
    "accel-ops, in_backward": lambda params: CPUAdam(params, in_backward=True),
    "accel-ops, in_backward, 8-bit": lambda params: CPUAdam(params, in_backward=True, states="8bit"),
}


def main():
    way, layers, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warm_up = torch.nn.Linear(8, 8)  # loads what the way needs, and the matrix products
    optimizer = WAYS[way](list(warm_up.parameters()))
    warm_up(torch.ones(1, 8)).sum().backward()
    before = resident("VmRSS")
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = WAYS[way](list(model.parameters()))
    batch = torch.randn(ROWS, width)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        model(batch).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"bytes": resident("VmHWM") - before, "seconds": min(seconds)}))


if __name__ == "__main__":
    main()
