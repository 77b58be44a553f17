"""Load FusedAdam with SYCL kernels in a new process, update once, print the seconds of both as JSON."""

from __future__ import annotations

import json
import time

import torch

from op_builder.xpu import FusedAdamBuilder


def main() -> None:
    tensors = [[torch.full((1000,), 1e-3)] for _ in range(4)]
    begin = time.perf_counter()
    module = FusedAdamBuilder().load(verbose=False)
    loaded = time.perf_counter()
    module.multi_tensor_adam(65536, None, tensors, 1e-3, 0.9, 0.999, 1e-8, 1, 1, True, 0.01)
    print(json.dumps({"load_s": loaded - begin, "first_update_s": time.perf_counter() - loaded}))


if __name__ == "__main__":
    main()
