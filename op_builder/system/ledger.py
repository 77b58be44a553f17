"""The file in which processes note the compilers that they start: ``accel-ops run --compiles`` and its children.

Each record is one ``write()`` in append mode, so that no lock is needed: fields that end with 0x1f, then 0x1e.

- ``start`` or ``refused``: time, process, its parent, the program's file, its arguments (``csrc/ledger/recorder.c``)
- ``end``: time, process, CPU seconds
- ``ask``: time, process, cache, library's frame, program's frame, stack, verdict (``compiler``, ``refused`` or empty),
  the program's file, its arguments (``op_builder.compiles.starts``)
- ``kernel``: as ``ask``, with name and seconds in place of arguments: a compiler inside the process
- ``missed``: time, process, op, reason (``op_builder.engine.build``)
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from op_builder import env

FIELD, RECORD = "\x1f", "\x1e"
_OTHERS = str.maketrans(FIELD + RECORD, "??")


def mode_and_file() -> tuple[str, str] | None:
    """What to do about a compiler, and the ledger's file; None without a ledger."""
    mode, _, file = (env.ACCEL_COMPILES.raw() or "").partition(":")
    return (mode, file) if file else None


def append(kind: str, *fields: object) -> None:
    """Append a record of this process to the ledger, if there is one."""
    kept = mode_and_file()
    if kept is None:
        return
    words = [kind, f"{time.monotonic():.6f}", str(os.getpid()), *(str(field).translate(_OTHERS) for field in fields)]
    try:
        file = os.open(kept[1], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:  # the program whose ledger it is has ended
        return
    try:
        os.write(file, os.fsencode("".join(word + FIELD for word in words) + RECORD))
    except UnicodeEncodeError:  # the locale is not that of the words
        pass
    finally:
        os.close(file)


def records(file: Path) -> list[list[str]]:
    """The fields of all complete records, by time."""
    found = [text.split(FIELD)[:-1] for text in os.fsdecode(file.read_bytes()).split(RECORD)[:-1]]
    return sorted(found, key=lambda fields: float(fields[1]))
