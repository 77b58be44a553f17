"""The C++ standard of an op: never older than the one that torch's headers need."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence

logger = logging.getLogger(__name__)

_STANDARD = re.compile(r"--?std[= ](?:c|gnu)\+\+(\w+)")
_DRAFTS = {"98": 3, "03": 3, "0x": 11, "1y": 14, "1z": 17, "2a": 20, "2b": 23, "2c": 26}


def without_older_standards(op: str, needed: str, flags: Sequence[str]) -> list[str]:
    """``flags`` without each ``-std=`` or ``-ansi`` older than ``needed``, with one warning for each op and flag."""
    kept = []
    for flag in flags:
        year = _year(flag)
        if year is not None and year < (_year(needed) or 0):
            _warn(op, needed, flag)
        else:
            kept.append(flag)
    return kept


def _year(flag: str) -> int | None:
    if flag in ("-ansi", "--ansi"):
        return _DRAFTS["98"]
    found = _STANDARD.fullmatch(flag)
    if found is None:
        return None
    name = found[1]
    return _DRAFTS.get(name) or (int(name) if name.isdecimal() else None)


@functools.cache
def _warn(op: str, needed: str, flag: str) -> None:
    logger.warning("Op '%s' is compiled with %s instead of %s: the installed torch requires it.", op, needed, flag)
