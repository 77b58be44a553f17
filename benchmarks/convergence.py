"""Adam with moments in fewer bits against float32 moments: do two tasks train as well?

The first task is the character model of examples/train_characters on Python's standard
library, the second a small network fitted to a smooth function, whose gradients fall by
orders of magnitude. Every contender starts from the same parameters and sees the same
batches, for several seeds. Contenders differ in how they store the moments: the choices of
CPUAdam(states=...), as a control bfloat16 rounded to nearest, and the 8-bit AdamW of
bitsandbytes and torchao where they are installed. beta2 is 0.999, so a step changes the
second moment by a thousandth: less than half of bfloat16's last place, which rounding to
nearest loses.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import statistics
from collections.abc import Callable, Iterable
from functools import partial
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

PICTURE = _measure.IMAGES / "convergence.png"
BETAS = (0.9, 0.999)
SMOOTHED_STEPS = 25


class NearestAdam(CPUAdam):
    """The control: float32 moments that are rounded to the nearest bfloat16 after every step.

    The op does the same with ``states="param"`` and bfloat16 parameters.
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
    """How the moments are stored.

    Attributes:
        bits: of one moment of one parameter, with its share of a block's scale.
        states: the argument of ``optimizer``.
        peer: the module of an ``AdamW8bit`` to use instead.
    """

    name: str
    bits: float
    states: str
    color: str
    optimizer: type[CPUAdam] = CPUAdam
    peer: str = ""

    def make_optimizer(
        self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0, seed: int
    ) -> Optimizer:
        """The optimizer with this storage; ``seed`` is for stochastic rounding."""
        if self.peer:
            made: Optimizer = importlib.import_module(self.peer).AdamW8bit(
                params, lr=lr, betas=BETAS, weight_decay=weight_decay
            )
            return made
        return self.optimizer(params, lr, betas=BETAS, weight_decay=weight_decay, states=self.states, seed=seed)


STORAGES = (
    Storage("float32", 32, "float32", "#1f3a5f"),
    Storage("bfloat16, stochastic rounding", 16, "bfloat16", "#3d7068"),
    Storage("8 bits in blocks", 8 + 8 / QUANT_BLOCK, "8bit", "#f2a65a"),
    Storage("bfloat16, to nearest", 16, "float32", "#c0392b", NearestAdam),
    *(
        Storage(f"8 bits, {name}", 8.125, "", color, peer=f"{name}.optim")
        for name, color in (("bitsandbytes", "#8e6c8a"), ("torchao", "#7f8c8d"))
        if importlib.util.find_spec(name) is not None
    ),
)


Advance = Callable[[], None]


def train_characters(storage: Storage, steps: int, seed: int, advance: Advance, **sizes: int) -> list[float]:
    """The loss of each step, in nats per character. ``sizes``: ``width`` and ``batch_size``, if not the recipe's."""
    recipe = Recipe(steps=steps, seed=seed, host_masters=False, betas=BETAS, **sizes)

    def make(params: Iterable[nn.Parameter]) -> Optimizer:
        return storage.make_optimizer(params, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, seed=seed)

    return train(make, standard_library(), recipe, get_accelerator(), lambda _: advance()).losses


def fit_function(storage: Storage, steps: int, seed: int, advance: Advance) -> list[float]:
    """The loss of each step: the mean squared error of a network with 64 hidden units on 64 of 512 points."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(512, 32, generator=generator)
    targets = torch.tanh(inputs @ torch.randn(32, 8, generator=generator) / 3)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    learning_rate = 3e-3
    optimizer = storage.make_optimizer(model.parameters(), lr=learning_rate, seed=seed)
    losses = []
    for step in range(steps):
        # To zero in the last third: the final loss is the distance from the minimum, not the noise around it.
        now = learning_rate * min(1.0, 3 * (1 - step / steps))
        (group,) = optimizer.param_groups
        group["lr"] = torch.tensor(now) if isinstance(group["lr"], torch.Tensor) else now  # a tensor in torchao
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
    """A model to train; ``run`` returns the loss of each step. The final loss is the mean of the last ``averaged``."""

    name: str
    loss: str
    run: Callable[[Storage, int, int, Advance], list[float]]
    steps: int
    averaged: int = SMOOTHED_STEPS


TASKS = (
    Task("characters", "nats per character", train_characters, 600),
    Task("function", "mean squared error", fit_function, 1500),
)
# Long enough for many seeds.
SMALL = Task("small characters", "nats per character", partial(train_characters, width=32, batch_size=8), 3000, 100)


@dataclasses.dataclass(frozen=True)
class Result:
    """One storage in one task: for each seed the loss of each step."""

    task: Task
    storage: Storage
    losses: list[list[float]]

    @property
    def final(self) -> list[float]:
        """For each seed, the mean loss of the last steps."""
        return [statistics.mean(losses[-self.task.averaged :]) for losses in self.losses]

    def above(self, reference: Result) -> list[float]:
        """For each seed, how much higher the final loss is than the reference's, as a fraction of it."""
        return [mine / theirs - 1 for mine, theirs in zip(self.final, reference.final, strict=True)]


def run_task(task: Task, storage: Storage, steps: int, seeds: Iterable[int], advance: Advance) -> Result:
    """Train once for each seed; call ``advance`` after every step, to show progress."""
    return Result(task, storage, [task.run(storage, steps, seed, advance) for seed in seeds])


def references(results: list[Result]) -> dict[str, Result]:
    """By task name, the result with float32 moments."""
    return {result.task.name: result for result in results if result.storage is STORAGES[0]}


def result_table(results: list[Result]) -> _measure.Table:
    """One row for each task and storage; losses are means over the seeds."""
    rows = []
    for result in results:
        reference = references(results)[result.task.name]
        above = result.above(reference)
        compared = [f"{statistics.mean(above):+.2%}", f"{min(above):+.2%} to {max(above):+.2%}"]
        loss = f"{statistics.mean(result.final):.4g}"
        rows.append(
            [
                result.task.name,
                result.storage.name,
                f"{result.storage.bits:g}",
                loss,
                *(("", "") if result is reference else compared),
            ]
        )
    columns = ("task", "moments", "bits", "final loss", "above float32", "for each seed")
    title = f"Adam's moments in fewer bits, {len(results[0].losses)} seeds"
    return _measure.Table(title, columns, rows)


def smoothed(losses: list[float]) -> list[float]:
    """The running mean of the last SMOOTHED_STEPS losses."""
    return [statistics.mean(losses[max(0, i + 1 - SMOOTHED_STEPS) : i + 1]) for i in range(len(losses))]


def means(losses: list[float]) -> list[float]:
    """The means of successive steps: all losses would fill a megabyte."""
    starts = range(0, len(losses), SMOOTHED_STEPS)
    return [round(statistics.fmean(losses[start : start + SMOOTHED_STEPS]), 7) for start in starts]


def draw(results: list[Result]) -> None:
    """Draw the first seed's loss curves and each seed's distance from float32, as docs/images/convergence.png."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(12, 6.5), dpi=130, layout="constrained")
    panels = figure.subplots(2, len(TASKS), sharex="col", height_ratios=(3, 2))
    figure.suptitle("Adam's moments in fewer bits, beta2 = 0.999")
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
                distances = [mine / theirs - 1 for mine, theirs in zip(curve, smoothed(losses), strict=True)]
                below.plot(steps, distances, color=result.storage.color, linewidth=0.9)
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
    figure.savefig(PICTURE)


def main() -> None:
    parser = _measure.make_parser("convergence", __doc__, "one seed, a tenth of the steps")
    defaults = ", ".join(f"{task.steps} for {task.name}" for task in TASKS)
    parser.add_argument("--steps", type=_measure.positive, metavar="N", help=f"steps of each run (default: {defaults})")
    parser.add_argument("--seeds", type=_measure.positive, metavar="N", help="runs of each contender (default: 3)")
    parser.add_argument("--small", action="store_true", help="only a model of width 32 with batches of 8, 3,000 steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so that the losses are the same on every machine with this instruction set
    machine = _measure.describe_machine()
    seeds = range(arguments.seeds or (1 if arguments.quick else 3))
    results: list[Result] = []
    with _measure.make_progress() as progress:
        for task in (SMALL,) if arguments.small else TASKS:
            steps = arguments.steps or (task.steps // 10 if arguments.quick else task.steps)
            for storage in STORAGES:
                bar = progress.add_task(f"{task.name}: {storage.name}", total=steps * len(seeds))
                results.append(run_task(task, storage, steps, seeds, partial(progress.advance, bar)))
    samples = [
        {
            "task": result.task.name,
            "moments": result.storage.name,
            f"mean losses of {SMOOTHED_STEPS} steps": [means(losses) for losses in result.losses],
        }
        for result in results
    ]
    file = "convergence_small" if arguments.small else None
    _measure.report("convergence", arguments, machine, [result_table(results)], samples, file)
    if arguments.write and not arguments.small:
        draw(results)


if __name__ == "__main__":
    main()
