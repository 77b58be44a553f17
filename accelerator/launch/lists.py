"""Lists of numbers in the kernel's format: ``0-2,8``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from op_builder.cgroups import parse_index_list


def parse_list(text: str) -> tuple[int, ...]:
    """A user's list, sorted; empty where the text has another format."""
    is_list = re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text.strip())
    return tuple(sorted(parse_index_list(text))) if is_list else ()


def format_list(numbers: Iterable[int]) -> str:
    """The numbers in that format, sorted."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
