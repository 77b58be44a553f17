"""Train a small character-level transformer with CPUAdam, then again with torch.optim.AdamW, and compare.

With --kernels sycl the first is FusedAdam with SYCL kernels on the SYCL CPU device, beside CPUAdam.

The text is the source of Python's own standard library, the device whatever the accelerator says,
the optimizer native code that is compiled the first time and comes from the cache after that.
On a GPU the optimizer works on float32 masters in host memory: gradients come down, parameters go up.

    python -m examples.train_characters [--steps 400] [--seed 0] [--out out] [--host-masters] [--dtype bfloat16]
        [--kernels sycl]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn
from torch.optim import Optimizer

from accelerator import get_accelerator
from accelerator.abstract_accelerator import Accelerator
from examples.characters.comparison import compare, draw
from examples.characters.text import Corpus, NoTextError, standard_library
from examples.characters.training import Recipe, Run, train
from op_builder.cache.store import Cache
from op_builder.catalog.registry import find_builder
from op_builder.errors import AccelError
from op_builder.ops import CPUAdam, SYCLFusedAdam

PICTURE = "loss_curves.png"
SAMPLE_START = "\n    def "
SAMPLE_LENGTH = 400

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Contender:
    """An AdamW: what it is called, and its class."""

    name: str
    make: Callable[..., Optimizer]


@dataclass(frozen=True)
class Contest:
    """Whose kernels, beside which other's.

    Attributes:
        package: the builders that ``ours`` comes from; None for the accelerator's own.
    """

    ours: Contender
    reference: Contender
    op: str
    builder: str
    package: str | None = None


CPU_ADAM = Contender("CPUAdam", CPUAdam)
CONTESTS = {
    "cpu": Contest(CPU_ADAM, Contender("torch AdamW", torch.optim.AdamW), "cpu_adam", "CPUAdamBuilder"),
    "sycl": Contest(
        Contender("SYCLFusedAdam", SYCLFusedAdam), CPU_ADAM, "fused_adam", "FusedAdamBuilder", "op_builder.xpu"
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when both runs agree, 1 when not or on an error, 130 when interrupted."""
    options = parse(arguments)
    try:
        return demonstrate(options)
    except (AccelError, NoTextError) as error:
        console.print(f"train_characters: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped.")
        return 130


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="training steps of each run (default 400)")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters, batches and sample (default 0)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory of the picture (default out)")
    parser.add_argument(
        "--host-masters",
        action="store_true",
        help="float32 masters on the host also where the device is the CPU; other devices always have them",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type of the model on the device; bfloat16 implies --host-masters (default float32)",
    )
    parser.add_argument(
        "--kernels",
        choices=tuple(CONTESTS),
        default="cpu",
        help="cpu: CPUAdam beside torch's AdamW; sycl: FusedAdam's SYCL kernels beside CPUAdam (default cpu)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (default 1)")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; at least one is needed")
    if options.threads < 1:
        parser.error(f"--threads is {options.threads}; at least one is needed")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}; choose a directory that can be written")
    return options


def demonstrate(options: argparse.Namespace) -> int:
    """Load the op, train twice, compare, draw, and let the model write."""
    # One thread by default: matrices this small gain little from a second one, and lose much when
    # another program wants its core, because the threads wait for each other after every operation.
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
    where = "float32 masters on the host" if recipe.host_masters else "on the model's own parameters"
    console.print(f"Training on {accelerator.device_name()} in {options.dtype}, optimizer {where}.")
    console.print(f"{len(corpus.train):,} characters of the standard library, {len(corpus.alphabet)} distinct.\n")

    def run(contender: Contender) -> Run:
        def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
            numbers = {"lr": recipe.learning_rate, "betas": recipe.betas, "weight_decay": recipe.weight_decay}
            return contender.make(parameters, **numbers)

        return run_with_progress(contender.name, make, corpus, recipe, accelerator)

    ours, reference = run(contest.ours), run(contest.reference)
    agreement = compare(ours.losses, reference.losses, (ours.validation_loss, reference.validation_loss), dtype)
    verdict = "agree within rounding" if agreement.ok else "DO NOT AGREE"
    style = "green" if agreement.ok else "bold red"
    names = f"{contest.ours.name} and {contest.reference.name}"
    console.print(f"\n{names} {verdict}: {agreement.sentence()}.", style=style)
    picture = options.out / PICTURE
    try:
        curves = {contest.ours.name: ours.losses, contest.reference.name: reference.losses}
        draw(picture, curves, agreement.limits)
        console.print(f"Loss curves: {picture}")
    except ImportError:
        console.print("No picture, because matplotlib is not installed: pip install 'accel-ops[demo]'", markup=False)

    written = ours.model.write(corpus.encode(SAMPLE_START), SAMPLE_LENGTH, seed=options.seed)
    console.print("\nWhat the model writes:", style="bold")
    lines = (line.rstrip() for line in corpus.decode(written).splitlines())
    console.print("\n".join(line for line in lines if line), markup=False)
    return 0 if agreement.ok else 1


def load_op(contest: Contest) -> None:
    """Load the native code, and say how long that took and where it came from."""
    cache = Cache()
    before = {entry.directory for entry in cache.entries(contest.op)}
    with console.status(f"Loading {contest.ours.name}; the first time it is compiled, which takes some seconds ..."):
        started = time.perf_counter()
        native = find_builder(contest.builder, contest.package or get_accelerator().op_builder_dir())().load()
        duration_s = time.perf_counter() - started
    if {entry.directory for entry in cache.entries(contest.op)} - before:
        origin = f"cold load: compiled now, kept in {cache.root}"
    elif before:
        origin = f"warm load: from the cache in {cache.root}"
    else:
        origin = "from the installed wheel, compiled with it"
    duration = f"{duration_s:.2f} s" if duration_s >= 1 else f"{duration_s * 1e3:.1f} ms"
    arithmetic = f"{native.isa} arithmetic" if native.isa else "SYCL kernels"
    console.print(f"{contest.ours.name} loaded in [bold]{duration}[/bold] ({origin}), {arithmetic}.")


def run_with_progress(
    name: str,
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    corpus: Corpus,
    recipe: Recipe,
    accelerator: Accelerator,
) -> Run:
    """Train under a progress bar that shows the loss, then say how it went."""
    columns = (
        TextColumn(f"{name:<13}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=recipe.steps, loss=float("nan"))

        def on_step(loss: float) -> None:
            progress.update(task, advance=1, loss=loss)

        run = train(make_optimizer, corpus, recipe, accelerator, on_step)
    milliseconds = run.duration_s / recipe.steps * 1e3
    console.print(
        f"{'':<13} loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f}, "
        f"validation {run.validation_loss:.3f}, {milliseconds:.0f} ms per step"
    )
    return run


if __name__ == "__main__":
    sys.exit(main())
