"""What the training examples share as programs: options, progress, errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn
from torch.optim import Optimizer

from accelerator import get_accelerator
from examples.characters.text import Corpus, NoTextError
from examples.characters.training import Recipe, Run, train
from op_builder.errors import AccelError

console = Console(highlight=False, soft_wrap=True)


def exit_status(name: str, program: Callable[[], int]) -> int:
    """What ``program`` returns; 1 on an error, which is printed, 130 when interrupted."""
    try:
        return program()
    except (AccelError, NoTextError, ValueError) as error:
        console.print(f"{name}: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped.")
        return 130


def make_parser(description: str | None, *, steps: int) -> argparse.ArgumentParser:
    """A parser with the options of every training: --steps, --seed, --threads."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help=f"training steps of each run (default: {steps})")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (default: 1)")
    return parser


def require_positive(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """End with a usage error if one of these options is below one."""
    for name in names:
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, but must be at least one")


def make_directory(parser: argparse.ArgumentParser, directory: Path) -> None:
    """Make the directory of an option; a usage error if it cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"{directory}: {error.strerror}; choose a directory that can be written")


def train_with_progress(
    name: str, make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer], corpus: Corpus, recipe: Recipe
) -> Run:
    """Train on the current accelerator under a progress bar that shows the loss; print a summary."""
    columns = (
        TextColumn(f"{name:<13}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=recipe.steps, loss=float("nan"))

        def on_step(loss: float) -> None:
            progress.update(task, advance=1, loss=loss)

        run = train(make_optimizer, corpus, recipe, get_accelerator(), on_step)
    console.print(
        f"{'':<13} loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f}, "
        f"validation {run.validation_loss:.3f}, {run.duration_s / recipe.steps * 1e3:.0f} ms per step"
    )
    return run
