"""Train a small character model and generate text on one rank and on several: the text must be the same.

The ranks use only ``torch.distributed``, once with gloo and once with the backend "accel", whose collectives go
through shared memory.

    python -m examples.parallel_generation [--ranks 2] [--steps 100] [--batch 8] [--length 96] [--width 128]
        [--layers 4]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch

from examples.characters.model import CharacterTransformer, Shape
from examples.characters.program import console, exit_status
from examples.characters.text import Corpus, batches, standard_library
from examples.parallel_generation.ranks import Task, write_alone, write_together

BACKENDS = ("gloo", "accel")
_HEADS = 8
_START = 16  # characters of each text that are given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; return 0 if every run generated the same text."""
    options = _parse(arguments)

    def program() -> int:
        corpus = standard_library()
        return 0 if _compare(_task(corpus, options), corpus, options.ranks) else 1

    return exit_status("parallel_generation", program)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.parallel_generation", description=__doc__.splitlines()[0])
    for name, default, description in (
        ("ranks", 2, "processes"),
        ("steps", 100, "training steps"),
        ("batch", 8, "texts in a batch"),
        ("length", 96, "characters to generate for each text"),
        ("width", 128, "width of the model"),
        ("layers", 4, "layers of the model"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{description} (default: {default})")
    options = parser.parse_args(arguments)
    if min(vars(options).values()) < 1:
        parser.error("each number must be at least one")
    if _HEADS % options.ranks or options.width % _HEADS:
        parser.error(f"--ranks must divide the {_HEADS} heads, and the heads must divide --width")
    return options


def _task(corpus: Corpus, options: argparse.Namespace) -> Task:
    """A model trained for a few seconds, and beginnings of texts that it has not seen."""
    torch.manual_seed(0)
    shape = Shape(len(corpus.alphabet), _START + options.length, options.width, _HEADS, options.layers)
    model = CharacterTransformer(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    started = time.perf_counter()
    loss = torch.zeros(())
    pieces_of_steps = batches(corpus.train, count=options.steps, batch_size=8, length=shape.context + 1, seed=0)
    for step, pieces in enumerate(pieces_of_steps):
        loss = model.loss(pieces)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            console.print(f"Training, step {step} of {options.steps}: loss {loss.item():.2f}")
    console.print(f"Trained {options.steps} steps in {time.perf_counter() - started:.0f} s, loss {loss.item():.2f}.")
    starts = next(batches(corpus.validation, count=1, batch_size=options.batch, length=_START, seed=1))
    return Task(model.eval(), starts, options.length)


def _compare(task: Task, corpus: Corpus, size: int) -> bool:
    alone = write_alone(task)
    _print_run(f"1 rank, {torch.get_num_threads()} threads", task.characters, alone.duration_s, "")
    agree = True
    for backend in BACKENDS:
        together = write_together(task, size, backend)
        same = torch.equal(together.texts, alone.texts)
        agree = agree and same
        outcome = f"{together.collectives}; the same text" if same else "ANOTHER TEXT THAN ON ONE RANK"
        _print_run(f"{size} ranks, {backend}", task.characters, together.duration_s, outcome)
    console.print("\nWhat the model writes:\n" + corpus.decode(alone.texts[0]), markup=False)
    return agree


def _print_run(name: str, characters: int, duration_s: float, outcome: str) -> None:
    console.print(f"{name:<16} {characters / duration_s:8.0f} tokens/s  {outcome}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
