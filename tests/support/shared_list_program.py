"""Threads that share one prepared list: some update it, one replaces and releases its gradients."""

from __future__ import annotations

import threading

import torch

from op_builder.cpu import CPUAdamBuilder
from op_builder.errors import OpArgumentError
from op_builder.ops.optim.tensor_lists import Pass, TensorLists

COUNT, UPDATES = 64, 500
OPTIONS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def make() -> list[torch.Tensor]:
    return [torch.ones(3000 + 10 * index) for index in range(COUNT)]


def main() -> None:
    op = CPUAdamBuilder().load()
    shared = op.prepare(TensorLists(make(), make(), [make(), make()]), [torch.tensor(0.0) for _ in range(COUNT)])
    options = [OPTIONS.get(name, 0.0) for name in op.options]

    def update() -> None:
        for _ in range(UPDATES):
            try:
                shared.update(options, Pass())
            except OpArgumentError as error:  # the gradients were released
                if "0 grad tensors" not in error.message:
                    raise

    threads = [threading.Thread(target=update) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shared.replace_grads(make())
        shared.release_grads()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
