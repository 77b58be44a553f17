"""DeepSpeed's CPU Adam as a peer: reads a JSON request per line, answers with a JSON line.

Runs in an interpreter that has torch and deepspeed, and nothing of this project.
"""

import json
import os
import sys
import time


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library writes to standard output must not mix with answers
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    params, moments = [], []

    def map_tensors(path, places, numel, dtype, moment):
        """Parameters with gradients, and their moments, in memory that the benchmark has made (its SharedMemory)."""
        memory = torch.from_file(path, shared=True, size=sum(places[-1]), dtype=torch.uint8)
        parts = [memory[at : at + size] for at, size in places]
        values, grads = (part.view(dtype).split(numel) for part in parts[:2])
        for value, grad in zip(values, grads, strict=True):
            params.append(torch.nn.Parameter(value))
            params[-1].grad = grad
        moments.extend(zip(*(part.view(moment).split(numel) for part in parts[2:]), strict=True))

    def make_grads():
        for param in params:
            param.grad = torch.full_like(param, 1e-3)

    optimizer = None
    new_grads = False
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prepare":
            del optimizer, params[:], moments[:]  # their memory, before more is taken
            torch.set_num_threads(request["threads"])
            dtype = getattr(torch, request["dtype"])
            count, numel = request["count"], request["numel"]
            if request["memory"] is None:
                params += [torch.nn.Parameter(torch.zeros(numel, dtype=dtype)) for _ in range(count)]
                make_grads()
            else:
                moment = torch.float32 if request["fp32_moments"] else dtype
                map_tensors(request["memory"], request["parts"], numel, dtype, moment)
            new_grads = request["new_grads"]
            optimizer = DeepSpeedCPUAdam(params, fp32_optimizer_states=request["fp32_moments"], weight_decay=0.01)
            if moments:
                optimizer.step()  # which makes moments
                for param, (first, second) in zip(params, moments, strict=True):
                    optimizer.state[param].update(exp_avg=first, exp_avg_sq=second)
            answer = {}
        else:
            if new_grads:
                make_grads()
            started = time.perf_counter()
            optimizer.step()
            answer = {"seconds": time.perf_counter() - started}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main()
