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

    params = []

    def make_grads():
        for param in params:
            param.grad = torch.full_like(param, 1e-3)

    optimizer = None
    new_grads = False
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prepare":
            del optimizer, params[:]  # their memory, before more is taken
            torch.set_num_threads(request["threads"])
            dtype = getattr(torch, request["dtype"])
            params += [torch.nn.Parameter(torch.zeros(request["numel"], dtype=dtype)) for _ in range(request["count"])]
            make_grads()
            new_grads = request["new_grads"]
            optimizer = DeepSpeedCPUAdam(params, fp32_optimizer_states=request["fp32_moments"], weight_decay=0.01)
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
