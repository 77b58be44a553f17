"""Real text that is on every machine: the sources of Python's own standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

_SIZE_BYTES = 1_000_000
_VALIDATION_SHARE = 0.1


class NoTextError(Exception):
    """No training text was found."""


@dataclass(frozen=True)
class Corpus:
    """Text as indices into its alphabet.

    Attributes:
        alphabet: the distinct characters, sorted.
        train: int64 tensor of one index per character.
        validation: the same, of modules that training never sees.
    """

    alphabet: str
    train: torch.Tensor
    validation: torch.Tensor

    def encode(self, text: str) -> torch.Tensor:
        """Indices of the characters of ``text``, int64."""
        return torch.tensor([self.alphabet.index(character) for character in text])

    def decode(self, indices: torch.Tensor) -> str:
        """The text of a tensor of indices."""
        return "".join(self.alphabet[index] for index in indices.tolist())


def standard_library(directory: Path | None = None, size_bytes: int = _SIZE_BYTES) -> Corpus:
    """The first ``size_bytes`` of the standard library's modules in order of their names.

    Args:
        directory: where the modules are; this interpreter's own library by default.

    Raises:
        NoTextError: no sources were found.
    """
    directory = directory or Path(sysconfig.get_path("stdlib"))
    text = "".join(_ascii_sources(directory))[:size_bytes]
    if len(text) < 10_000:
        raise NoTextError(
            f"{directory} holds no Python sources to train on; this interpreter may be a zipped or stripped one. "
            "Use a Python whose standard library is installed as .py files."
        )
    alphabet = "".join(sorted(set(text)))
    positions = {character: index for index, character in enumerate(alphabet)}
    indices = torch.tensor([positions[character] for character in text])
    train_size = int(len(text) * (1 - _VALIDATION_SHARE))
    return Corpus(alphabet, indices[:train_size], indices[train_size:])


def _ascii_sources(directory: Path) -> Iterator[str]:
    for path in sorted(directory.glob("*.py")):
        content = path.read_bytes()
        if content.isascii():  # keeps the alphabet below a hundred characters
            yield content.decode("ascii")


def batches(text: torch.Tensor, *, count: int, batch_size: int, length: int, seed: int) -> Iterator[torch.Tensor]:
    """``count`` batches of random pieces of ``text``, int64 of shape (batch_size, length); the same for one seed."""
    generator = torch.Generator().manual_seed(seed)
    within = torch.arange(length)
    for _ in range(count):
        starts = torch.randint(len(text) - length + 1, (batch_size, 1), generator=generator)
        yield text[starts + within]
