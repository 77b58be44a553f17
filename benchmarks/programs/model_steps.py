"""One optimizer on a model's tensors: the time of a step, and the bytes of its state.

    model_steps.py CONTENDER

The interpreter has torch, the contender's library and this project, except for DeepSpeed's, which lacks this project.
"""

import os
import sys
import time

from answering import answer_requests


def make_optimizer(contender, params):
    """AdamW of ``contender``, the name of a library and of a kind of state."""
    options = {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.01}
    if contender.startswith("accel-ops"):
        from op_builder.ops import CPUAdam

        return CPUAdam(params, states="8bit" if "8-bit" in contender else "float32", **options)
    if contender == "bitsandbytes":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(params, **options)
    if contender == "torchao":
        from torchao.optim import AdamW8bit

        return AdamW8bit(params, **options)
    if contender == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(params, adamw_mode=True, **options)
    from torch.optim import AdamW

    return AdamW(params, fused=contender == "torch fused", foreach=contender == "torch foreach", **options)


class Contender:
    """Answers the requests ``prepare``, ``step`` and ``state_bytes``."""

    def __init__(self):
        import torch

        self.torch = torch
        self.name = sys.argv[1]
        self.optimizer, self.params, self.copies = None, [], []

    def __call__(self, request):
        return getattr(self, request.pop("do"))(**request)

    def prepare(self, shapes, has_copies, threads):
        """Make float32 parameters of these shapes, and bfloat16 copies of them that a step writes as well."""
        torch = self.torch
        torch.set_num_threads(threads)
        self.params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        self.copies = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes] if has_copies else []
        self.optimizer = make_optimizer(self.name, self.params)
        if has_copies and self.name.startswith("accel-ops"):
            self.optimizer.write_copies(dict(zip(self.params, self.copies, strict=True)))
            self.copies = []
        return {}

    def step(self):
        """A step and ``zero_grad()``, after new gradients were made outside the clock."""
        for param in self.params:
            param.grad = self.torch.full_like(param, 1e-3)
        started = time.perf_counter()
        self.optimizer.step()
        if self.copies:
            self.torch._foreach_copy_(self.copies, [param.detach() for param in self.params])
        self.optimizer.zero_grad()
        return {"seconds": time.perf_counter() - started}

    def state_bytes(self):
        """Bytes of the optimizer's state."""
        total = 0
        for state in self.optimizer.state.values():
            for value in state.values():
                total += sum(part.nbytes for part in self._plain_parts(value))
        return {"bytes": total}

    def _plain_parts(self, value):
        if hasattr(value, "__tensor_flatten__"):
            return [getattr(value, name) for name in value.__tensor_flatten__()[0]]
        return [value] if isinstance(value, self.torch.Tensor) else []


os.environ["DS_ACCELERATOR"] = "cpu"
answer_requests(Contender)
