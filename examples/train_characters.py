"""Train a small character-level transformer with CPUAdam, then again with torch.optim.AdamW, and compare.

With --kernels sycl FusedAdam with SYCL kernels on the SYCL CPU device is compared with CPUAdam.

The text is the source of Python's standard library; the accelerator chooses the device. The optimizer is
native code that is compiled the first time and loaded from the cache after that. On a GPU it works on float32
masters in host memory: gradients are copied to the host, parameters to the device.

    python -m examples.train_characters [--steps 200] [--seed 0] [--host-masters] [--dtype bfloat16] [--kernels sycl]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.optim import Optimizer

from accelerator import get_accelerator
from examples.characters.comparison import compare
from examples.characters.program import (
    console,
    exit_status,
    make_parser,
    require_positive,
    train_with_progress,
)
from examples.characters.text import standard_library
from examples.characters.training import Recipe
from op_builder.cache.store import Cache
from op_builder.catalog.registry import find_builder
from op_builder.ops import CPUAdam, SYCLFusedAdam

SAMPLE_START = "\n    def "
SAMPLE_LENGTH = 400


@dataclass(frozen=True)
class Contest:
    """Two optimizers to compare.

    Attributes:
        makers: by their names, the classes of ours and of the reference.
        package: the builders that ours comes from; None for the accelerator's own.
    """

    makers: dict[str, Callable[..., Optimizer]]
    op: str
    builder: str
    package: str | None = None


CONTESTS = {
    "cpu": Contest({"CPUAdam": CPUAdam, "torch AdamW": torch.optim.AdamW}, "cpu_adam", "CPUAdamBuilder"),
    "sycl": Contest(
        {"SYCLFusedAdam": SYCLFusedAdam, "CPUAdam": CPUAdam}, "fused_adam", "FusedAdamBuilder", "op_builder.xpu"
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if both runs agree, 1 if not or on an error, 130 if interrupted."""
    options = parse(arguments)
    return exit_status("train_characters", lambda: demonstrate(options))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, steps=200)
    parser.add_argument(
        "--host-masters",
        action="store_true",
        help="keep float32 masters on the host even if the device is the CPU; other devices always do",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type of the model on the device; bfloat16 implies --host-masters (default: float32)",
    )
    parser.add_argument(
        "--kernels",
        choices=tuple(CONTESTS),
        default="cpu",
        help="cpu: CPUAdam against torch's AdamW; sycl: FusedAdam's SYCL kernels against CPUAdam (default: cpu)",
    )
    options = parser.parse_args(arguments)
    require_positive(parser, options, "steps", "threads")
    return options


def demonstrate(options: argparse.Namespace) -> int:
    """Load the op, train twice, compare, and generate text."""
    # One thread by default: matrices this small gain little from a second one and lose much if another program
    # uses its core, because the threads wait for each other after every operation.
    torch.set_num_threads(options.threads)
    accelerator = get_accelerator()
    dtype = getattr(torch, options.dtype)
    recipe = Recipe(
        steps=options.steps,
        seed=options.seed,
        dtype=dtype,
        host_masters=options.host_masters or accelerator.device_name() != "cpu" or dtype != torch.float32,
    )
    contest = CONTESTS[options.kernels]
    load_op(contest)
    corpus = standard_library()
    updates = "float32 copies in host memory" if recipe.host_masters else "the model's parameters"
    console.print(f"Training on {accelerator.device_name()} in {options.dtype}, the optimizer updates {updates}.")
    console.print(f"{len(corpus.train):,} characters of the standard library, {len(corpus.alphabet)} distinct.\n")

    numbers = {"lr": recipe.learning_rate, "betas": recipe.betas, "weight_decay": recipe.weight_decay}
    ours, reference = (
        train_with_progress(name, partial(make, **numbers), corpus, recipe) for name, make in contest.makers.items()
    )
    agreement = compare(ours.losses, reference.losses, (ours.validation_loss, reference.validation_loss), dtype)
    verdict = "agree within rounding" if agreement.ok else "DO NOT AGREE"
    style = "green" if agreement.ok else "bold red"
    console.print(f"\n{' and '.join(contest.makers)} {verdict}: {agreement.sentence()}.", style=style)

    written = ours.model.write(corpus.encode(SAMPLE_START), SAMPLE_LENGTH, seed=options.seed)
    console.print("\nWhat the model writes:", style="bold")
    lines = (line.rstrip() for line in corpus.decode(written).splitlines())
    console.print("\n".join(line for line in lines if line), markup=False)
    return 0 if agreement.ok else 1


def load_op(contest: Contest) -> None:
    """Load the native code; print the time and where it came from."""
    cache, name = Cache(), next(iter(contest.makers))
    before = {entry.directory for entry in cache.entries(contest.op)}
    with console.status(f"Loading {name}; the first time it is compiled, which takes some seconds ..."):
        started = time.perf_counter()
        builder = find_builder(contest.builder, contest.package or get_accelerator().op_builder_dir())
        native = builder().load(verbose=False)  # a slow build logs its progress now and then
        duration_s = time.perf_counter() - started
    if {entry.directory for entry in cache.entries(contest.op)} - before:
        origin = f"cold load: compiled now, kept in {cache.root}"
    elif before:
        origin = f"warm load: from the cache in {cache.root}"
    else:
        origin = "from the installed wheel, compiled with it"
    duration = f"{duration_s:.2f} s" if duration_s >= 1 else f"{duration_s * 1e3:.1f} ms"
    arithmetic = f"{native.isa} arithmetic" if native.isa else "SYCL kernels"
    console.print(f"{name} loaded in [bold]{duration}[/bold] ({origin}), {arithmetic}.")


if __name__ == "__main__":
    sys.exit(main())
