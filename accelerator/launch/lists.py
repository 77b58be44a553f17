"""Lists of numbers as the kernel writes them: ``0-2,8``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from op_builder.system.cgroups import parse_index_list


def parse_list(text: str) -> tuple[int, ...]:
    """The numbers that a user has written so, rising; empty where it is something else."""
    written_so = re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text.strip())
    return tuple(sorted(parse_index_list(text))) if written_so else ()


def format_list(numbers: Sequence[int]) -> str:
    """Rising numbers in that format."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
