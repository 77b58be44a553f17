"""DeepSpeed's CPU Adam as a peer. The interpreter has torch and deepspeed, and nothing of this project."""

import os
import time

from answering import answer_requests


class Peer:
    """Answers ``{"do": "prepare", ...}`` with ``{}`` and ``{"do": "step"}`` with the step's seconds."""

    def __init__(self):
        self.optimizer = None
        self.params = []
        self.new_grads = False

    def __call__(self, request):
        return self.prepare(**request) if request.pop("do") == "prepare" else self.step()

    def prepare(self, count, numel, dtype, fp32_moments, threads, new_grads, memory, parts):
        """Make the optimizer; ``memory`` is the file of the benchmark's SharedMemory and ``parts`` its layout."""
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        self.optimizer, self.params = None, []  # frees their memory
        torch.set_num_threads(threads)
        self.new_grads = new_grads
        dtype = getattr(torch, dtype)
        moments = []
        if memory is None:
            self.params = [torch.nn.Parameter(torch.zeros(numel, dtype=dtype)) for _ in range(count)]
            self.make_grads()
        else:
            mapped = torch.from_file(memory, shared=True, size=sum(parts[-1]), dtype=torch.uint8)
            moment = torch.float32 if fp32_moments else dtype
            params, grads, *moments = (
                mapped[begin : begin + size].view(kind).split(numel)
                for (begin, size), kind in zip(parts, (dtype, dtype, moment, moment), strict=True)
            )
            self.params = [torch.nn.Parameter(param) for param in params]
            for param, grad in zip(self.params, grads, strict=True):
                param.grad = grad
        self.optimizer = DeepSpeedCPUAdam(self.params, fp32_optimizer_states=fp32_moments, weight_decay=0.01)
        if moments:
            self.optimizer.step()  # makes moments, which these replace
            for param, first, second in zip(self.params, *moments, strict=True):
                self.optimizer.state[param].update(exp_avg=first, exp_avg_sq=second)
        return {}

    def make_grads(self):
        import torch

        for param in self.params:
            param.grad = torch.full_like(param, 1e-3)

    def step(self):
        if self.new_grads:
            self.make_grads()
        started = time.perf_counter()
        self.optimizer.step()
        return {"seconds": time.perf_counter() - started}


os.environ["DS_ACCELERATOR"] = "cpu"
answer_requests(Peer)
