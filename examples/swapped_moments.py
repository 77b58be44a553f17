"""Train with Adam's moments in memory, then again with them on disk, and compare bit by bit.

In the second run the moments are in files of an op_builder.ops.TensorStore. A few chunks of them are in
memory at a time: while CPUAdam updates one chunk, the next is read and the one before is written back,
during the backward pass, which has the last layers' gradients first. The disk then costs only the time
for which an update has to wait for it.

    python -m examples.swapped_moments [--steps 40] [--width 512] [--chunks 12] [--directory DIR]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from rich import box
from rich.table import Table
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
from examples.characters.swapping import SLOTS, STATES, SwappedAdam
from examples.characters.text import standard_library
from examples.characters.training import Recipe, Run
from op_builder.cpu import AsyncIOBuilder
from op_builder.ops import CPUAdam, TensorStore
from op_builder.ops.io.tensor_store_transfer import StoreCounters


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if both runs are the same to the bit, 1 if not or on an error, 130 if interrupted."""
    options = parse(arguments)

    def program() -> int:
        if options.directory is not None:
            return demonstrate(options, options.directory)
        with tempfile.TemporaryDirectory(prefix="moments-", dir=options.out) as directory:
            return demonstrate(options, Path(directory))

    return exit_status("swapped_moments", program)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, steps=40)
    parser.add_argument("--width", type=int, default=512, help="width of the model, a multiple of 8 (default: 512)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument(
        "--chunks", type=int, default=12, help=f"chunks of the moments, a multiple of {SLOTS} (default: 12)"
    )
    parser.add_argument(
        "--directory", type=Path, help="directory of the moments, which stay there; choose the disk to test"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out"),
        help="parent of a temporary directory, without --directory (default: out)",
    )
    options = parser.parse_args(arguments)
    require_positive(parser, options, "steps", "threads", "layers", "width", "chunks")
    if options.width % 8:
        parser.error(f"--width is {options.width}, but must be a multiple of 8, the number of heads")
    if options.chunks % SLOTS:
        parser.error(f"--chunks is {options.chunks}, but must be a multiple of {SLOTS}, the number in memory")
    make_directory(parser, options.directory or options.out)
    return options


def demonstrate(options: argparse.Namespace, directory: Path) -> int:
    """Train twice, print whether both runs are the same and what the disk cost."""
    torch.set_num_threads(options.threads)
    device = get_accelerator().device_name()
    recipe = Recipe(
        steps=options.steps,
        seed=options.seed,
        host_masters=device != "cpu",
        width=options.width,
        layers=options.layers,
        learning_rate=1e-3,
    )
    corpus = standard_library()
    adam = {"lr": recipe.learning_rate, "betas": recipe.betas, "weight_decay": recipe.weight_decay}
    made: dict[str, Optimizer] = {}
    with console.status("Loading the ops; the first time they are compiled, which takes some seconds ..."):
        handle = AsyncIOBuilder().load().aio_handle()
        get_accelerator().create_op_builder("CPUAdamBuilder").load()

    def in_memory(parameters: Iterable[nn.Parameter]) -> Optimizer:
        made["memory"] = CPUAdam(parameters, **adam)
        return made["memory"]

    # A power cut ends the training anyway, so the moments need not survive it and nothing waits for fsync.
    with TensorStore(directory, is_durable=False) as store:

        def on_disk(parameters: Iterable[nn.Parameter]) -> Optimizer:
            made["disk"] = SwappedAdam(
                parameters,
                store,
                chunks=options.chunks,
                new_buffer=lambda size: handle.new_cpu_locked_tensor(size, torch.empty(0)),
                **adam,
            )
            return made["disk"]

        console.print(f"Training on {device}; moments in memory, then in {directory} by {handle.engine}.\n")
        memory_run = train_with_progress("in memory", in_memory, corpus, recipe)
        disk_run = train_with_progress("on disk", on_disk, corpus, recipe)
        swapped = made["disk"]
        assert isinstance(swapped, SwappedAdam)
        store.wait()
        counters = store.counters()
        differing = differences(memory_run, disk_run, made["memory"], swapped)
    report(memory_run, disk_run, swapped, counters)
    if differing:
        console.print(f"\nThe runs DIFFER in: {', '.join(differing)}.", style="bold red")
        if device != "cpu":
            console.print("On a GPU the backward pass itself may differ from run to run.")
        return 1
    console.print(
        f"\nThe same to the bit: {recipe.steps} losses, the validation loss, all parameters, all moments.",
        style="green",
    )
    return 0


def differences(memory_run: Run, disk_run: Run, memory: Optimizer, disk: SwappedAdam) -> list[str]:
    """The names of what differs by a bit or more."""
    parameters = zip(memory_run.model.parameters(), disk_run.model.parameters(), strict=True)
    stored = disk.stored_moments()
    moments = (
        torch.equal(memory.state[one][state], stored[other][state])
        for one, other in zip(_parameters(memory), disk.parameters, strict=True)
        for state in STATES
    )
    same = {
        "losses": memory_run.losses == disk_run.losses,
        "validation loss": memory_run.validation_loss == disk_run.validation_loss,
        "parameters": all(torch.equal(one, other) for one, other in parameters),
        "moments": all(list(moments)),
    }
    return [name for name, is_same in same.items() if not is_same]


def report(memory_run: Run, disk_run: Run, swapped: SwappedAdam, counters: StoreCounters) -> None:
    """Print both runs, and where the time of the disk went."""
    steps = len(disk_run.losses)
    table = Table(box=box.SIMPLE_HEAD, title="Adam's moments in memory and on disk", title_justify="left")
    for heading in ("", "in memory", "on disk"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("last loss", f"{memory_run.losses[-1]:.7f}", f"{disk_run.losses[-1]:.7f}")
    table.add_row("validation loss", f"{memory_run.validation_loss:.7f}", f"{disk_run.validation_loss:.7f}")
    table.add_row("moments in memory", _megabytes(swapped.moments_bytes), _megabytes(swapped.memory_bytes))
    table.add_row("total seconds", f"{memory_run.duration_s:.2f}", f"{disk_run.duration_s:.2f}")
    table.add_row("read, written each step", "", _megabytes(swapped.moments_bytes))
    table.add_row(
        "read, written in total", "", f"{counters.bytes_read / 1e9:.2f}, {counters.bytes_written / 1e9:.2f} GB"
    )
    io_s = counters.read_s + counters.written_s
    table.add_row("seconds of reading and writing", "", f"{io_s:.2f}")
    table.add_row("of these, updates waited", "", f"{swapped.waited_s:.2f}")
    table.add_row("overlapped with training", "", f"{max(0.0, 1 - swapped.waited_s / io_s):.0%}")
    table.add_row("updates of a step, with waiting", "", f"{swapped.update_s / steps * 1e3:.1f} ms")
    console.print()
    console.print(table)


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
