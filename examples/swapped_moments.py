"""Train with Adam's moments in memory, then again with them on disk, and compare bit by bit.

In the second run the moments are in files of an op_builder.ops.TensorStore. A few chunks of them are in
memory at a time: while CPUAdam updates one chunk, the next is read and the one before is written back,
during the backward pass, which has the last layers' gradients first. The disk then costs only the time
for which an update has to wait for it.

    python -m examples.swapped_moments [--steps 40] [--width 512] [--directory DIR]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from accelerator import get_accelerator
from examples.characters.program import (
    console,
    exit_status,
    make_directory,
    make_parser,
    require_positive,
    train_with_progress,
)
from examples.characters.text import standard_library
from examples.characters.training import Recipe, Run
from op_builder.ops import CPUAdam, TensorStore

STATES = ("exp_avg", "exp_avg_sq")
SLOTS = 3
"""Chunks in memory at a time: one is updated, one is read, one is written back."""
CHUNKS = 4 * SLOTS


class SwappedAdam(Optimizer):
    """:class:`CPUAdam` in chunks of parameters whose moments share three buffers.

    A chunk is updated as soon as the backward pass has all its gradients, beginning with the last layers; ``step()``
    updates the rest. The first two chunks are read during the forward pass. A chunk's moments are always at the same
    place in memory, so that what CPUAdam prepares once stays valid.

    It supports one backward pass for each step, and nothing that needs all gradients before the first update (clipping,
    a loss scale that may skip the step).

    Args:
        params: at least three float32 CPU parameters.
        store: where the moments go; the constructor saves zeros.
        options: CPUAdam's.

    Attributes:
        parameters: all of them, as they were given.
        waited_s: total seconds that updates waited for the disk.
        memory_bytes, moments_bytes: of the buffers, and of all moments.
    """

    def __init__(self, params: Iterable[nn.Parameter], store: TensorStore, **options: Any) -> None:
        self.parameters = list(params)
        # A multiple of the slots, so that a chunk's successors never have its slot.
        count = min(CHUNKS, len(self.parameters)) // SLOTS * SLOTS
        bounds = [len(self.parameters) * at // count for at in range(count + 1)]
        parts = [self.parameters[::-1][bounds[at] : bounds[at + 1]] for at in range(count)]
        super().__init__([{"params": part} for part in parts], {})
        self._store = store
        sizes = [sum(parameter.numel() for parameter in part) * len(STATES) for part in parts]
        buffers = [torch.zeros(max(sizes[slot::SLOTS])) for slot in range(SLOTS)]
        self.memory_bytes, self.moments_bytes = sum(buffer.nbytes for buffer in buffers), 4 * sum(sizes)
        self.waited_s = 0.0
        self._moments = [buffers[index % SLOTS][:size] for index, size in enumerate(sizes)]
        self._optimizers = [CPUAdam(part, **options) for part in parts]
        # The same groups, so that schedulers set the learning rates of the parts.
        self.param_groups = [optimizer.param_groups[0] for optimizer in self._optimizers]
        for index, (optimizer, part) in enumerate(zip(self._optimizers, parts, strict=True)):
            for parameter, views in zip(part, views_of(self._moments[index], part), strict=True):
                optimizer.state[parameter] = {"step": torch.tensor(0.0), **views}
                parameter.register_post_accumulate_grad_hook(partial(self._gradient_came, index))
            store.save(f"moments-{index}", self._moments[index])
        self._saved: dict[int, Future[None]] = {}
        self._loaded: dict[int, Future[torch.Tensor]] = {}
        for index in range(SLOTS - 1):
            self._read(index)
        self._start_round()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient and was not updated during the backward pass."""
        assert closure is None
        while self._next < len(self._moments):
            self._update_next()
        self._start_round()

    def stored_moments(self) -> dict[nn.Parameter, dict[str, torch.Tensor]]:
        """All moments, read from the disk into memory of their own."""
        return {
            parameter: views
            for index, group in enumerate(self.param_groups)
            for parameter, views in zip(
                group["params"], views_of(self._store.load(f"moments-{index}"), group["params"]), strict=True
            )
        }

    def _start_round(self) -> None:
        self._next, self._missing = 0, [len(group["params"]) for group in self.param_groups]

    def _gradient_came(self, index: int, _parameter: torch.Tensor) -> None:
        self._missing[index] -= 1
        while self._next < len(self._moments) and self._missing[self._next] == 0:
            self._update_next()

    def _update_next(self) -> None:
        index = self._next
        self._wait(self._loaded.pop(index))
        self._optimizers[index].step()
        self._saved[index] = self._store.save_async(f"moments-{index}", self._moments[index])
        self._read((index + SLOTS - 1) % len(self._moments))
        self._next += 1

    def _read(self, index: int) -> None:
        """Begin to read a chunk's moments, once those that were in their place are written."""
        before = self._saved.pop((index - SLOTS) % len(self._moments), None)
        if before is not None:
            self._wait(before)
        self._loaded[index] = self._store.load_async(f"moments-{index}", self._moments[index])

    def _wait(self, future: Future[Any]) -> None:
        started = time.perf_counter()
        future.result()
        self.waited_s += time.perf_counter() - started


def views_of(moments: torch.Tensor, parameters: list[nn.Parameter]) -> list[dict[str, torch.Tensor]]:
    """For each parameter its states, of its shape, one after another in ``moments``."""
    pieces = iter(moments.split([parameter.numel() for parameter in parameters for _ in STATES]))
    return [{state: next(pieces).view(parameter.shape) for state in STATES} for parameter in parameters]


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if both runs are the same to the bit, 1 if not or on an error, 130 if interrupted."""
    parser = make_parser(__doc__, steps=40)
    parser.add_argument("--width", type=int, default=512, help="width of the model, a multiple of 8 (default: 512)")
    parser.add_argument("--directory", type=Path, default=Path("out"), help="on the disk to use (default: out)")
    options = parser.parse_args(arguments)
    require_positive(parser, options, "steps", "threads", "width")
    if options.width % 8:
        parser.error(f"--width is {options.width}, but must be a multiple of 8, the number of heads")
    make_directory(parser, options.directory)
    return exit_status("swapped_moments", lambda: demonstrate(options))


def demonstrate(options: argparse.Namespace) -> int:
    """Train twice, print whether both runs are the same and what the disk cost."""
    torch.set_num_threads(options.threads)
    device = get_accelerator().device_name()
    recipe = Recipe(options.steps, options.seed, device != "cpu", width=options.width, learning_rate=1e-3)
    corpus = standard_library()
    adam = {"lr": recipe.learning_rate, "betas": recipe.betas, "weight_decay": recipe.weight_decay}
    made: list[Any] = []

    def in_memory(parameters: Iterable[nn.Parameter]) -> Optimizer:
        made.append(CPUAdam(parameters, **adam))
        return made[-1]

    # A power cut ends the training anyway, so the moments need not survive it and nothing waits for fsync.
    with (
        tempfile.TemporaryDirectory(prefix="moments-", dir=options.directory) as directory,
        TensorStore(directory, is_durable=False) as store,
    ):

        def on_disk(parameters: Iterable[nn.Parameter]) -> Optimizer:
            made.append(SwappedAdam(parameters, store, **adam))
            return made[-1]

        console.print(f"Training on {device}; moments in memory, then in {options.directory}.\n")
        memory_run = train_with_progress("in memory", in_memory, corpus, recipe)
        disk_run = train_with_progress("on disk", on_disk, corpus, recipe)
        memory, disk = made
        store.wait()
        differing = differences(memory_run, disk_run, memory, disk)
    console.print(
        f"\n{disk.moments_bytes / 1e6:.1f} MB of moments, {disk.memory_bytes / 1e6:.1f} MB of them in memory; "
        f"of {disk_run.duration_s:.2f} s, updates waited {disk.waited_s:.2f} s for the disk."
    )
    if differing:
        console.print(f"The runs DIFFER in: {', '.join(differing)}.", style="bold red")
        if device != "cpu":
            console.print("On a GPU the backward pass itself may differ from run to run.")
        return 1
    console.print(
        f"The same to the bit: {recipe.steps} losses, the validation loss, all parameters, all moments.", style="green"
    )
    return 0


def differences(memory_run: Run, disk_run: Run, memory: Optimizer, disk: SwappedAdam) -> list[str]:
    """The names of what differs by a bit or more."""
    stored = disk.stored_moments()
    own = [parameter for group in memory.param_groups for parameter in group["params"]]
    pairs = list(zip(memory_run.model.parameters(), disk_run.model.parameters(), strict=True))
    same = {
        "losses": memory_run.losses == disk_run.losses,
        "validation loss": memory_run.validation_loss == disk_run.validation_loss,
        "parameters": all(torch.equal(one, other) for one, other in pairs),
        "moments": all(
            torch.equal(memory.state[one][state], stored[other][state])
            for one, other in zip(own, disk.parameters, strict=True)
            for state in STATES
        ),
    }
    return [name for name, is_same in same.items() if not is_same]


if __name__ == "__main__":
    sys.exit(main())
