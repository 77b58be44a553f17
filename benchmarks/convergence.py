"""Whether moments in fewer bytes train as well as float32 ones: two tasks, one Adam.

The first task is the character-level transformer of examples/train_characters on Python's own standard
library, the second a small network fitted to a smooth function, whose gradients fall by orders of
magnitude. Every contender starts from the same parameters and sees the same batches, for several seeds;
what differs is how the two moments lie in memory: the ways of ``CPUAdam(states=...)`` and, as a control,
bfloat16 rounded to nearest. beta2 is 0.999, where a step changes the second moment by a thousandth: less
than half of bfloat16's last place, so that rounding to nearest keeps it where it was, and with it a
learning rate that was made for large gradients.

    python -m benchmarks.convergence [--steps N] [--seeds N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from accelerator import get_accelerator
from benchmarks import _measure
from examples.characters.text import standard_library
from examples.characters.training import Recipe, train
from op_builder.ops import CPUAdam
from op_builder.ops.optim.tensor_lists import QUANT_BLOCK

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "convergence.png"
BETAS = (0.9, 0.999)
SMOOTHED_STEPS = 25


class NearestAdam(CPUAdam):
    """The control: moments in bfloat16, rounded to nearest.

    float32 ones that are rounded after every step: what the op does with ``states="param"`` where
    parameters are of bfloat16, too.
    """

    @torch.no_grad()
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Update all parameters that have gradients, then round."""
        loss = super().step(*args, **kwargs)
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].bfloat16())
        return loss


@dataclasses.dataclass(frozen=True)
class Storage:
    """How moments lie in memory.

    Attributes:
        bits: of one moment of one parameter, a block's scale shared out.
        states: what ``optimizer`` is told.
    """

    name: str
    bits: float
    states: str
    color: str
    optimizer: type[CPUAdam] = CPUAdam

    def make_optimizer(
        self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0, seed: int
    ) -> CPUAdam:
        """The optimizer that keeps its moments so; ``seed`` is of the random rounding."""
        return self.optimizer(params, lr, betas=BETAS, weight_decay=weight_decay, states=self.states, seed=seed)


STORAGES = (
    Storage("float32", 32, "float32", "#1f3a5f"),
    Storage("bfloat16, stochastic rounding", 16, "bfloat16", "#3d7068"),
    Storage("8 bits in blocks", 8 + 32 / QUANT_BLOCK, "8bit", "#f2a65a"),
    Storage("bfloat16, to nearest", 16, "float32", "#c0392b", NearestAdam),
)


Advance = Callable[[], None]


def train_characters(storage: Storage, steps: int, seed: int, advance: Advance) -> list[float]:
    """Losses of each step, in nats per character."""
    recipe = Recipe(steps=steps, seed=seed, host_masters=False, betas=BETAS)

    def make(params: Iterable[nn.Parameter]) -> Optimizer:
        return storage.make_optimizer(params, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, seed=seed)

    return train(make, standard_library(), recipe, get_accelerator(), lambda _: advance()).losses


def fit_function(storage: Storage, steps: int, seed: int, advance: Advance) -> list[float]:
    """Losses of each step: mean squared errors of a network of 64 hidden units, batches of 64 of 512 points."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(512, 32, generator=generator)
    targets = torch.tanh(inputs @ torch.randn(32, 8, generator=generator) / 3)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    learning_rate = 3e-3
    optimizer = storage.make_optimizer(model.parameters(), lr=learning_rate, seed=seed)
    losses = []
    for step in range(steps):
        # Down to nothing in the last third: what is left is the distance from the minimum, not noise around it.
        optimizer.param_groups[0]["lr"] = learning_rate * min(1.0, 3 * (1 - step / steps))
        chosen = torch.randint(512, (64,), generator=generator)
        loss = ((model(inputs[chosen]) - targets[chosen]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        advance()
    return losses


@dataclasses.dataclass(frozen=True)
class Task:
    """Something to train; ``run`` gives the loss of each step."""

    name: str
    loss: str
    run: Callable[[Storage, int, int, Advance], list[float]]
    steps: int


TASKS = (
    Task("characters", "nats per character", train_characters, 600),
    Task("function", "mean squared error", fit_function, 1500),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """The runs of one contender in one task: the losses of each step, for each seed."""

    task: Task
    storage: Storage
    losses: list[list[float]]

    @property
    def final(self) -> list[float]:
        """For each seed, the mean loss of the last SMOOTHED_STEPS steps."""
        return [statistics.mean(losses[-SMOOTHED_STEPS:]) for losses in self.losses]

    def above(self, reference: Result) -> list[float]:
        """How much higher the final loss is than the reference's, as a fraction of it, seed by seed."""
        return [mine / theirs - 1 for mine, theirs in zip(self.final, reference.final, strict=True)]


def run_task(task: Task, storage: Storage, steps: int, seeds: Iterable[int], advance: Advance) -> Result:
    """Train once for each seed.

    Args:
        advance: called after every step, to show progress.
    """
    return Result(task, storage, [task.run(storage, steps, seed, advance) for seed in seeds])


COLUMNS = ("task", "moments", "bits a moment", "final loss", "above float32", "seed by seed")


def references(results: list[Result]) -> dict[str, Result]:
    """By task, the result with float32 moments."""
    return {result.task.name: result for result in results if result.storage is STORAGES[0]}


def rows_of(results: list[Result]) -> list[list[str]]:
    """The table's rows; losses are means over the seeds."""
    rows = []
    for result in results:
        reference = references(results)[result.task.name]
        above = result.above(reference)
        is_reference = result is reference
        rows.append(
            [
                result.task.name,
                result.storage.name,
                f"{result.storage.bits:g}",
                f"{statistics.mean(result.final):.4g}",
                "" if is_reference else f"{statistics.mean(above):+.2%}",
                "" if is_reference else f"{min(above):+.2%} to {max(above):+.2%}",
            ]
        )
    return rows


def smoothed(losses: list[float]) -> list[float]:
    """Each step's mean of itself and those before it, SMOOTHED_STEPS at most."""
    return [statistics.mean(losses[max(0, i + 1 - SMOOTHED_STEPS) : i + 1]) for i in range(len(losses))]


def draw(path: Path, results: list[Result]) -> None:
    """For each task the loss curves of the first seed, and how far each seed's are above float32's, as a PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(12, 6.5), dpi=130, layout="constrained")
    panels = figure.subplots(2, len(TASKS), sharex="col", height_ratios=(3, 2))
    figure.suptitle("Adam's moments in fewer bytes, beta2 = 0.999")
    for column, task in enumerate(TASKS):
        above, below = panels[0][column], panels[1][column]
        reference = references(results)[task.name]
        for result in results:
            if result.task is not task:
                continue
            curves = [smoothed(losses) for losses in result.losses]
            steps = range(1, len(curves[0]) + 1)
            label = f"{result.storage.name} ({result.storage.bits:g} bits)"
            above.plot(steps, curves[0], color=result.storage.color, linewidth=1.2, label=label)
            for curve, losses in zip(curves, reference.losses, strict=True):
                apart = [mine / theirs - 1 for mine, theirs in zip(curve, smoothed(losses), strict=True)]
                below.plot(steps, apart, color=result.storage.color, linewidth=0.9)
        above.set_title(task.name)
        above.set_yscale("log")
        above.set_ylabel(f"training loss ({task.loss})")
        below.set_ylabel("above float32, each seed")
        below.yaxis.set_major_formatter(PercentFormatter(1.0))
        below.set_xlabel("step")
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    panels[0][0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def as_json(machine: _measure.Machine, results: list[Result]) -> str:
    """All figures, for programs."""
    entries: list[dict[str, Any]] = [
        {
            "task": result.task.name,
            "moments": result.storage.name,
            "bits": result.storage.bits,
            "final": result.final,
            "above": result.above(references(results)[result.task.name]),
            "losses": result.losses,
        }
        for result in results
    ]
    return json.dumps({"machine": dataclasses.asdict(machine), "results": entries}, indent=2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence", description=__doc__.partition("\n")[0])
    defaults = ", ".join(f"{task.steps} of {task.name}" for task in TASKS)
    parser.add_argument("--steps", type=int, help=f"training steps of each run (default {defaults})")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each contender (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table and the picture into docs")
    arguments = parser.parse_args()
    for name in ("steps", "seeds", "threads"):
        if (getattr(arguments, name) or 1) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    machine = _measure.describe_machine()
    results: list[Result] = []
    seeds = range(arguments.seeds)
    with _measure.make_progress() as progress:
        for task in TASKS:
            steps = arguments.steps or task.steps
            for storage in STORAGES:
                bar = progress.add_task(f"{task.name}: {storage.name}", total=steps * arguments.seeds)
                results.append(run_task(task, storage, steps, seeds, partial(progress.advance, bar)))
    if arguments.json:
        print(as_json(machine, results))
    else:
        title = f"Adam's moments in fewer bytes, {arguments.seeds} seeds"
        _measure.console.print(_measure.table(title, COLUMNS, rows_of(results)))
        _measure.console.print(str(machine))
    if arguments.write:
        draw(PICTURE, results)
        _measure.write_results(
            "convergence", f"{machine}, {arguments.seeds} seeds\n\n{_measure.markdown(COLUMNS, rows_of(results))}"
        )


if __name__ == "__main__":
    main()
