"""Small facts that cost a subprocess or much hashing to find, kept in the cache directory.

A memo is a JSON file valid as long as the files it was worked out from keep their size and
modification time. It only saves time: it may vanish, be torn or be unwritable, and the fact is
then worked out again. For a cache that cannot be written, memos are the user's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Memo:
    """Remembered facts in directories, and in this process.

    Args:
        directories: of the JSON files: all are read, and the first that is writable is written to.
    """

    def __init__(self, *directories: Path) -> None:
        self._directories = directories
        self._seen: dict[str, dict[str, Any]] = {}

    def get(self, subject: str, work_out: Callable[[], tuple[dict[str, Any], list[str]]]) -> dict[str, Any]:
        """The fact about ``subject``.

        Args:
            subject: names the fact and everything it depends on in addition to files.
            work_out: finds it; returns the fact (JSON values) and the files it depends on.
        """
        name = hashlib.sha256(subject.encode(errors="surrogatepass")).hexdigest()[:32] + ".json"
        entry = self._valid(subject, name)
        if entry is None:
            fact, files = work_out()
            entry = {"subject": subject, "fact": fact, "files": {file: _status(file) for file in files}}
            self._write(name, json.dumps(entry))
        self._seen[subject] = entry
        found: dict[str, Any] = entry["fact"]
        return found

    def _valid(self, subject: str, name: str) -> dict[str, Any] | None:
        entry = self._seen.get(subject)
        if entry is not None and _still_valid(entry, subject):
            return entry
        for directory in self._directories:
            with contextlib.suppress(OSError, ValueError):
                kept: dict[str, Any] = json.loads((directory / name).read_text())
                if _still_valid(kept, subject):
                    return kept
        return None

    def _write(self, name: str, text: str) -> None:
        for directory in self._directories:
            with contextlib.suppress(OSError):
                _write_atomically(directory / name, text)
                return


def _status(path: str) -> list[int] | None:
    """``[size, mtime_ns]`` of a file, None where it is missing."""
    try:
        status = os.stat(path)
    except (OSError, UnicodeEncodeError):
        return None
    return [status.st_size, status.st_mtime_ns]


def _still_valid(entry: Any, subject: str) -> bool:
    try:
        files = entry["files"].items()
        return entry["subject"] == subject and all(
            known is not None and _status(name) == known for name, known in files
        )
    except (KeyError, TypeError, AttributeError):  # torn or made by another version
        return False


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=".staged-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise
