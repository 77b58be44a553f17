"""One rank of ``benchmarks/checkpoints.py``: saves and loads a GPT-2-size model with Adam's moments.

checkpoint_rank.py RANK RANKS STORE
"""

import shutil
import sys
import time
import warnings
from pathlib import Path

from benchmarks._adam_models import gpt2_small
from benchmarks.programs.answering import answer_requests


def make_answer():
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor

    from op_builder.ops import CheckpointReader, CheckpointWriter

    rank, ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")  # HuggingFaceStorageReader reads tensors that cannot be written
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = dist.init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    state = {
        f"{kind}.{number}": distribute_tensor(torch.randn(shape), mesh, [Shard(0)], src_data_rank=None)
        for kind in ("model", "exp_avg", "exp_avg_sq")
        for number, shape in enumerate(gpt2_small())
    }
    sums = {name: value.to_local().double().sum().item() for name, value in state.items()}
    storages = {
        "accel-ops": (CheckpointWriter, CheckpointReader),
        "FileSystem": (dcp.FileSystemWriter, dcp.FileSystemReader),
        "HuggingFace": (
            lambda path: dcp.HuggingFaceStorageWriter(path, save_distributed=True),
            dcp.HuggingFaceStorageReader,
        ),
    }

    def answer(request):
        path, (writer, reader) = request["path"], storages[request["storage"]]
        if request["action"] == "save":
            if rank == 0:
                shutil.rmtree(path, ignore_errors=True)
                Path(path).mkdir()
        else:
            for value in state.values():
                value.to_local().zero_()
        dist.barrier()
        began, cpu_began = time.perf_counter(), time.process_time()
        if request["action"] == "save":
            dcp.save(state, storage_writer=writer(path))
        else:
            dcp.load(state, storage_reader=reader(path))
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        if any(value.to_local().double().sum().item() != sums[name] for name, value in state.items()):
            raise AssertionError(f"{request['storage']} loaded other values than it saved")
        return {"seconds": seconds, "cpu_s": cpu_s}

    return answer


if __name__ == "__main__":
    answer_requests(make_answer)
