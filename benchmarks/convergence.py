"""Whether moments in fewer bytes train as well as float32 ones: one model, one text, one Adam.

The model is the character-level transformer of examples/train_characters, the text Python's own
standard library. Every contender starts from the same parameters and sees the same batches, for
several seeds; what differs is how the two moments lie in memory. beta2 is 0.999, where a step changes
the second moment by a thousandth: less than half of bfloat16's last place, so that rounding to nearest
loses it.

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
from examples.characters.text import Corpus, standard_library
from examples.characters.training import Recipe, train
from op_builder.ops.native.cpu_adam import CPUAdamModule
from op_builder.ops.native.host_optimizer import QUANT_BLOCK, Pass, TensorLists

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "convergence.png"
BETAS = (0.9, 0.999)
SMOOTHED_STEPS = 25


@dataclasses.dataclass(frozen=True)
class Storage:
    """How moments lie in memory.

    Attributes:
        bits: of one moment of one parameter, a block's scale shared out.
        dtype: of the moments' elements.
        stochastic: bfloat16 is rounded at random.
        nearest: the moments are rounded to this type after every step, to nearest.
    """

    name: str
    bits: float
    dtype: torch.dtype
    color: str
    stochastic: bool = False
    nearest: torch.dtype | None = None


STORAGES = (
    Storage("float32", 32, torch.float32, "#1f3a5f"),
    Storage("bfloat16, stochastic rounding", 16, torch.bfloat16, "#3d7068", stochastic=True),
    Storage("8 bits in blocks", 8 + 32 / QUANT_BLOCK, torch.uint8, "#f2a65a"),
    Storage("bfloat16, to nearest", 16, torch.float32, "#c0392b", nearest=torch.bfloat16),
)


class ListAdam(Optimizer):
    """AdamW on float32 parameters through the list form of the native op.

    Args:
        seed: of the random rounding.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], storage: Storage, lr: float, weight_decay: float, seed: int
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._storage = storage
        self._seed = seed
        self._native: CPUAdamModule = get_accelerator().create_op_builder("CPUAdamBuilder").load()
        params = self.param_groups[0]["params"]
        self._moments = [[torch.zeros_like(param, dtype=storage.dtype) for param in params] for _ in range(2)]
        self._scales: list[list[torch.Tensor]] = []
        if storage.dtype == torch.uint8:
            blocks = [-(-param.numel() // QUANT_BLOCK) for param in params]
            self._scales = [[torch.zeros(count) for count in blocks] for _ in range(2)]
        self._step = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters, which must have gradients."""
        if closure is not None:
            raise NotImplementedError("ListAdam takes no closure.")
        group = self.param_groups[0]
        params = group["params"]
        self._step += 1
        self._native.update_list(
            TensorLists(params, [param.grad for param in params], self._moments, self._scales),
            self._step,
            (float(group["lr"]), *BETAS, 1e-8, group["weight_decay"], True, True),
            Pass(stochastic=self._storage.stochastic, seed=self._seed),
        )
        if self._storage.nearest is not None:
            # What the op does where parameters are of that type too: float arithmetic, rounded when stored.
            for moments in self._moments:
                for moment in moments:
                    moment.copy_(moment.to(self._storage.nearest))


@dataclasses.dataclass(frozen=True)
class Result:
    """The runs of one contender, one for each seed; losses are in nats per character."""

    storage: Storage
    losses: list[list[float]]
    final: list[float]
    """Mean training loss of the last SMOOTHED_STEPS steps."""
    validation: list[float]

    def behind(self, reference: Result) -> list[float]:
        """How much higher the final loss is, seed by seed."""
        return [mine - theirs for mine, theirs in zip(self.final, reference.final, strict=True)]


def run_storage(
    storage: Storage, corpus: Corpus, steps: int, seeds: Iterable[int], advance: Callable[[], None]
) -> Result:
    """Train once for each seed.

    Args:
        advance: called after every step, to show progress.
    """
    result = Result(storage, [], [], [])
    for seed in seeds:
        recipe = Recipe(steps=steps, seed=seed, host_masters=False, betas=BETAS)

        def make(params: Iterable[nn.Parameter], recipe: Recipe = recipe) -> Optimizer:
            return ListAdam(params, storage, recipe.learning_rate, recipe.weight_decay, recipe.seed)

        run = train(make, corpus, recipe, get_accelerator(), lambda _: advance())
        result.losses.append(run.losses)
        result.final.append(statistics.mean(run.losses[-SMOOTHED_STEPS:]))
        result.validation.append(run.validation_loss)
    return result


COLUMNS = ("moments", "bits a moment", "training loss", "behind float32", "validation loss")


def rows_of(results: list[Result]) -> list[list[str]]:
    """The table's rows; losses are means over the seeds."""
    reference = results[0]
    rows = []
    for result in results:
        behind = result.behind(reference)
        spread = f" ({min(behind):+.4f} to {max(behind):+.4f})" if len(behind) > 1 else ""
        rows.append(
            [
                result.storage.name,
                f"{result.storage.bits:g}",
                f"{statistics.mean(result.final):.4f}",
                "" if result is reference else f"{statistics.mean(behind):+.4f}{spread}",
                f"{statistics.mean(result.validation):.4f}",
            ]
        )
    return rows


def smoothed(losses: list[float]) -> list[float]:
    """Each step's mean of itself and those before it, SMOOTHED_STEPS at most."""
    return [statistics.mean(losses[max(0, i + 1 - SMOOTHED_STEPS) : i + 1]) for i in range(len(losses))]


def draw(path: Path, results: list[Result]) -> None:
    """The loss curves of the first seed, and how far each seed's are from float32's, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), dpi=130, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle("Adam's moments in fewer bytes: a character-level transformer, beta2 = 0.999")
    for result in results:
        curves = [smoothed(losses) for losses in result.losses]
        label = f"{result.storage.name} ({result.storage.bits:g} bits)"
        steps = range(1, len(curves[0]) + 1)
        above.plot(steps, curves[0], color=result.storage.color, linewidth=1.2, label=label)
        for curve, losses in zip(curves, results[0].losses, strict=True):
            apart = [mine - theirs for mine, theirs in zip(curve, smoothed(losses), strict=True)]
            below.plot(steps, apart, color=result.storage.color, linewidth=0.9)
    above.set_yscale("log")
    above.set_ylabel("training loss (nats per character)")
    above.legend(frameon=False)
    below.set_ylabel("above float32, each seed")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def as_json(machine: _measure.Machine, results: list[Result]) -> str:
    """All figures, for programs."""
    entries: list[dict[str, Any]] = [
        {
            "moments": result.storage.name,
            "bits": result.storage.bits,
            "final": result.final,
            "behind": result.behind(results[0]),
            "validation": result.validation,
            "losses": result.losses,
        }
        for result in results
    ]
    return json.dumps({"machine": dataclasses.asdict(machine), "results": entries}, indent=2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="training steps of each run (default 1000)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each contender (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="draw the picture, put the table into RESULTS.md")
    arguments = parser.parse_args()
    for name in ("steps", "seeds", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    machine = _measure.describe_machine()
    corpus = standard_library()
    results: list[Result] = []
    with _measure.make_progress() as progress:
        for storage in STORAGES:
            task = progress.add_task(storage.name, total=arguments.steps * arguments.seeds)
            seeds = range(arguments.seeds)
            results.append(run_storage(storage, corpus, arguments.steps, seeds, partial(progress.advance, task)))
    if arguments.json:
        print(as_json(machine, results))
    else:
        title = f"Adam's moments in fewer bytes, {arguments.steps} steps, {arguments.seeds} seeds"
        _measure.console.print(_measure.table(title, COLUMNS, rows_of(results)))
        _measure.console.print(str(machine))
    if arguments.write:
        draw(PICTURE, results)
        _measure.write_results(
            "convergence",
            f"{machine}, {arguments.steps} steps, {arguments.seeds} seeds\n\n"
            + _measure.markdown(COLUMNS, rows_of(results)),
        )


if __name__ == "__main__":
    main()
