"""Small facts that cost a subprocess or much hashing to find, kept in the cache directory.

A memo is a record (:mod:`op_builder.system.records`), valid as long as the files it was worked out from keep their size
and modification time. It only saves time: it may vanish, be damaged or be unwritable, and the fact is then worked out
again. For a cache that cannot be written, memos are the user's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from op_builder.system import records
from op_builder.system.file_contents import replace_text
from op_builder.system.records import (
    OtherFormatError,
    RecordError,
    Schema,
    are_integers,
    decode,
    encode,
    is_sha256,
    mapping_of,
    members,
    read_text,
)

SHA256_FACT: Schema = {"sha256": is_sha256}
"""The schema of a fact that is one digest."""

_FORMAT = 1
_DIGITS = 32  # of a file's name
_SUFFIX = ".json"
_are_statuses = mapping_of(are_integers)


class Memo:
    """Remembered facts in directories, and in this process.

    Args:
        directories: of the JSON files: all are read, and the first that is writable is written to.
        create: sees that such a directory exists; raises an OSError if it cannot be written to.
        open_file: opens a memo; raises an OSError for one that is not believed.
    """

    def __init__(
        self,
        *directories: Path,
        create: Callable[[Path], object] | None = None,
        open_file: Callable[[Path], int] = records.open_file,
    ) -> None:
        self._directories = directories
        self._open_file = open_file
        self._create = create or (lambda directory: directory.mkdir(parents=True, exist_ok=True))
        self._seen: dict[str, dict[str, Any]] = {}

    def get(
        self, subject: str, schema: Schema, work_out: Callable[[], tuple[dict[str, Any], list[str]]]
    ) -> dict[str, Any]:
        """The fact about ``subject``.

        Args:
            subject: names the fact and everything it depends on in addition to files.
            schema: of the fact; one that another version remembered and that differs is worked out again.
            work_out: finds it; returns the fact (JSON values) and the files it depends on.
        """
        name = hashlib.sha256(subject.encode(errors="surrogatepass")).hexdigest()[:_DIGITS] + _SUFFIX
        entry = self._valid(subject, name, schema)
        if entry is None:
            fact, files = work_out()
            entry = {"subject": subject, "fact": fact, "files": {file: _status(file) for file in files}}
            if None not in entry["files"].values():  # what is missing may be installed the next moment
                self._write(name, encode(entry, _FORMAT))
        self._seen[subject] = entry
        found: dict[str, Any] = entry["fact"]
        return found

    def damaged(self) -> list[Path]:
        """The files of memos that are damaged."""
        paths = [path for directory in self._directories for path in directory.glob(f"{'[0-9a-f]' * _DIGITS}{_SUFFIX}")]
        return sorted(path for path in paths if _is_damaged(path))

    def _valid(self, subject: str, name: str, schema: Schema) -> dict[str, Any] | None:
        entry = self._seen.get(subject)
        if entry is not None and _is_current(entry):
            return entry
        table: Schema = {"subject": lambda value: value == subject, "fact": members(schema), "files": _are_statuses}
        for directory in self._directories:
            with contextlib.suppress(OSError, RecordError):
                kept = decode(read_text(directory / name, self._open_file), table, _FORMAT)
                if _is_current(kept):
                    return kept
        return None

    def _write(self, name: str, text: str) -> None:
        for directory in self._directories:
            with contextlib.suppress(OSError):
                self._create(directory)
                replace_text(directory / name, text, prefix=".staged-")
                return


def _status(path: str) -> list[int] | None:
    """``[size, mtime_ns]`` of a file, None where it is missing."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # no file has a name that this locale cannot encode
        return None
    return [status.st_size, status.st_mtime_ns]


def _is_current(entry: dict[str, Any]) -> bool:
    return all(known is not None and _status(name) == known for name, known in entry["files"].items())


def _is_damaged(path: Path) -> bool:
    anything: Schema = dict.fromkeys(("subject", "fact", "files"), lambda _: True)
    try:
        decode(read_text(path), anything, _FORMAT)
    except (OSError, OtherFormatError):
        return False
    except RecordError:
        return True
    return False
