"""DeepSpeed's async_io as a peer: reads a JSON request per line, answers with a JSON line.

Runs in an interpreter that has torch and deepspeed, and nothing of this project.
"""

import json
import os
import resource
import sys
import time


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library writes to standard output must not mix with answers
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    started = time.perf_counter()
    module = AsyncIOBuilder().load()
    load_s = time.perf_counter() - started
    handles = {}
    buffer = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prepare":
            # Their locked tensors are page-aligned; freed when the process ends.
            owner = module.aio_handle(1 << 20, 32, False, True, 1)
            buffer = owner.new_cpu_locked_tensor(request["size_bytes"], torch.empty(0, dtype=torch.uint8))
            buffer.fill_(1)
            answer = {"load_s": load_s}
        else:
            key = (request["block_bytes"], request["depth"], request["threads"])
            if key not in handles:
                handles[key] = module.aio_handle(key[0], key[1], False, True, key[2])
            call = handles[key].sync_pread if request["do"] == "read" else handles[key].sync_pwrite
            cpu, started = cpu_seconds(), time.perf_counter()
            call(buffer, request["path"], 0)
            answer = {"seconds": time.perf_counter() - started, "cpu_s": cpu_seconds() - cpu}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main()
