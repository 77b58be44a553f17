"""The file in which processes note the compilers that they start: ``accel-ops run --compiles`` and its children.

Each record is one ``write()`` in append mode, so that no lock is needed: 0x1e, fields that end with 0x1f, 0x1e. So a
record that a full disk cut off spoils no other. Times are whole microseconds, which no locale changes. Of a program
that is no compiler, only some of the arguments are kept (:func:`shortened`).

- ``start`` or ``refused``: time, process, its parent, the program's file, its arguments (``csrc/ledger/recorder.c``)
- ``end``: time, process, CPU time
- ``ask``: time, process, cache, library's frame, program's frame, stack, verdict (``compiler``, ``refused`` or empty),
  the program's file, its arguments (``op_builder.compiles.starts``)
- ``kernel``: as ``ask``, with name and duration in place of arguments: a compiler inside the process
- ``missed``: time, process, op, reason (``op_builder.engine.build``)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from op_builder import env

FIELD, RECORD = "\x1f", "\x1e"
_OTHERS = str.maketrans(FIELD + RECORD, "??")
_NUMBER = re.compile("[0-9]{1,18}")
MOST_LAST_WORDS, MOST_BYTES = 8, 200
REFUSED_REMEDY = (
    "To fill a cache first: `accel-ops run --compiles report -- PROGRAM`. To compile here, use `warn`, not `raise`."
)


def mode_and_file() -> tuple[str, str] | None:
    """What to do about a compiler, and the ledger's file; None without a ledger."""
    mode, _, file = (env.ACCEL_COMPILES.raw() or "").partition(":")
    return (mode, file) if file else None


def append(kind: str, *fields: object) -> None:
    """Append a record of this process to the ledger, if there is one."""
    kept = mode_and_file()
    if kept is None:
        return
    now = time.monotonic_ns() // 1000
    words = [kind, str(now), str(os.getpid()), *(str(field).translate(_OTHERS) for field in fields)]
    try:
        file = os.open(kept[1], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:  # the program whose ledger it is has ended
        return
    try:
        os.write(file, os.fsencode(RECORD + "".join(word + FIELD for word in words) + RECORD))
    except (OSError, UnicodeEncodeError):  # the disk is full; the locale is not that of the words
        pass
    finally:
        os.close(file)


def shortened(words: Sequence[str]) -> list[str]:
    """The first word and the last ones, each cut: enough to know a program again that is no compiler."""
    kept = [*words[:1], *words[1:][-MOST_LAST_WORDS:]]
    return [os.fsdecode(os.fsencode(word)[:MOST_BYTES]) for word in kept]


def records(file: Path, offset: int = 0) -> tuple[list[list[str]], int]:
    """The fields of all complete records from ``offset`` on, by time, and where they end; damaged ones are left out."""
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            data = opened.read()
    except OSError:  # the ledger was removed
        return [], offset
    size = data.rfind(RECORD.encode()) + 1
    found = [text.split(FIELD)[:-1] for text in os.fsdecode(data[:size]).split(RECORD)]
    readable = [fields for fields in found if len(fields) > 3 and all(map(_NUMBER.fullmatch, fields[1:3]))]
    return sorted(readable, key=lambda fields: int(fields[1])), offset + size
