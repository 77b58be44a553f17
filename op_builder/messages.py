"""What messages of many modules share: sizes, near matches, groups, and warnings that appear once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable


def size_text(size_bytes: int) -> str:
    """A size with its unit, in at most four digits: ``1.5 GiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: ``1 rank``, ``2 ranks``; ``plural`` is one that does not end in ``s`` alone."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def did_you_mean(name: str, known: Iterable[str], common: str = "") -> str:
    """``Did you mean A, B or C?`` with the most similar of the known names, or some that begin with the name, or empty.

    Args:
        common: a part that all names have. It does not count, because it would make all of them similar.
    """
    import difflib

    by_distinct = {each.replace(common, ""): each for each in known}
    wanted = name.replace(common, "")
    near = [wanted] if wanted in by_distinct else difflib.get_close_matches(wanted, by_distinct)
    near = near or [each for each in by_distinct if each.startswith(f"{wanted}_")][:3]
    names = [by_distinct[each] for each in near]
    first = ", ".join(names[:-1])
    return f"Did you mean {f'{first} or ' if first else ''}{names[-1]}?" if names else ""


def grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each text with its names, from (name, text) pairs: ``a, b: text``."""
    names: dict[str, list[str]] = {}
    for name, text in pairs:
        names.setdefault(text, []).append(name)
    return [f"{', '.join(each)}: {text}" for text, each in names.items()]


@functools.cache
def warn_once(logger: logging.Logger, message: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    logger.warning("%s", message)
