"""Damaged and hostile variants of records; the same ones in each run."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, float("nan"), float("inf"), 1 << 31, 1 << 63, -(1 << 70), 10**300),
    *("", " ", ".", "..", "/", "/etc/passwd", "../../up", "a/b", "nul\0here", "\ud800", "\udc80", "line\nfeed"),
    *("\x1b[2J", "x" * 5000, "٣", "[", '[1, "x"]', "{}", "9" * 5000, "-rf", "$(id)", "é", "accel", "header"),
    *([], {}, [[]], [None], [1, "a"], ["\0"], {"": None}, {"a": {"b": [1]}}, [{}], ["x"] * 500, {"../x": "1"}),
)
"""Values of wrong types, sizes and alphabets."""


def damaged(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Variants with flipped bits, replaced or missing bytes."""
    chance = random.Random(seed)
    for number in range(count):
        at = chance.randrange(len(content))
        if number % 4 == 0:
            yield content[:at]
        elif number % 4 == 1:
            yield content[:at] + content[at + chance.randint(1, 20) :]
        elif number % 4 == 2:
            yield content[:at] + chance.randbytes(3) + content[at + 1 :]
        else:
            yield content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def overwritten(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Variants with zeros, ones or random bytes, most of them near the start, where formats have their tables."""
    chance = random.Random(seed)
    for _ in range(count):
        variant = bytearray(content)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(min(len(variant), 0x1000) if chance.random() < 0.8 else len(variant))
            value = chance.choice((b"\0", b"\xff", b"\x7f", b"\xff" * 4, b"\xff" * 8, b"\0" * 8, chance.randbytes(1)))
            variant[at : at + len(value)] = value
        yield bytes(variant)


def hostile(record: dict[str, Any], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Variants with a hostile value at a random place, a member more or a member less."""
    chance = random.Random(seed)
    for _ in range(count):
        variant = copy.deepcopy(record)
        place: Any = variant
        while True:
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not (isinstance(place[key], dict | list) and place[key] and chance.random() < 0.7):
                break
            place = place[key]
        change = chance.random()
        if change < 0.8:
            place[key] = chance.choice(HOSTILE)
        elif change < 0.9 or isinstance(place, list):
            del place[key]
        else:
            place[chance.choice(("extra", "", "\ud800", "../x"))] = chance.choice(HOSTILE)
        yield variant
