"""One training run: the same data, model and schedule whatever the optimizer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from accelerator.abstract_accelerator import Accelerator
from examples.characters.masters import HostMasters
from examples.characters.model import CharacterTransformer, Shape
from examples.characters.text import Corpus, batches

_VALIDATION_BATCHES = 20
_WARM_UP_STEPS = 30


@dataclass(frozen=True)
class Recipe:
    """What two runs share.

    Attributes:
        host_masters: float32 masters and optimizer on the host; else the optimizer gets the model's
            parameters themselves.
        dtype: type of the model on the device; other than float32 only with host masters.
        width: of the model.
    """

    steps: int
    seed: int
    host_masters: bool
    dtype: torch.dtype = torch.float32
    batch_size: int = 32
    width: int = 128
    learning_rate: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1


@dataclass(frozen=True)
class Run:
    """A finished run: the loss of each step and of the validation text in nats per character, and the model."""

    losses: list[float]
    validation_loss: float
    duration_s: float
    model: CharacterTransformer


def train(
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    corpus: Corpus,
    recipe: Recipe,
    accelerator: Accelerator,
    on_step: Callable[[float], None],
) -> Run:
    """Train a new model; the same ``recipe`` gives the same first parameters and the same batches.

    Args:
        on_step: called with each step's loss.
    """
    torch.manual_seed(recipe.seed)  # on the host, so that every device starts from the same model
    shape = Shape(alphabet=len(corpus.alphabet), width=recipe.width)
    model = CharacterTransformer(shape).to(accelerator.device(), recipe.dtype)
    masters = HostMasters(model, accelerator) if recipe.host_masters else None
    optimizer = make_optimizer(model.parameters() if masters is None else masters.parameters())
    schedule = LambdaLR(optimizer, lambda step: _learning_rate_factor(step, recipe.steps))
    length = model.shape.context + 1
    losses: list[float] = []
    started = time.perf_counter()
    for pieces in batches(
        corpus.train, count=recipe.steps, batch_size=recipe.batch_size, length=length, seed=recipe.seed
    ):
        loss = model.loss(accelerator.pin_memory(pieces).to(accelerator.device(), non_blocking=True))
        loss.backward()
        if masters is None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            masters.wait_for_gradients()
            optimizer.step()
            masters.send_up()
        schedule.step()
        losses.append(loss.item())
        on_step(losses[-1])
    duration_s = time.perf_counter() - started
    return Run(losses, _validation_loss(model, corpus, recipe, accelerator), duration_s, model)


def _learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    warm_up = min(1.0, (step + 1) / _WARM_UP_STEPS)
    return warm_up * (0.55 + 0.45 * math.cos(math.pi * step / steps))


@torch.no_grad()
def _validation_loss(model: CharacterTransformer, corpus: Corpus, recipe: Recipe, accelerator: Accelerator) -> float:
    pieces = batches(
        corpus.validation,
        count=_VALIDATION_BATCHES,
        batch_size=recipe.batch_size,
        length=model.shape.context + 1,
        seed=0,  # the same text for every run
    )
    losses = [model.loss(piece.to(accelerator.device())) for piece in pieces]
    return torch.stack(losses).mean().item()
