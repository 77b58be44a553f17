"""Small facts that cost a subprocess or much hashing to find, kept beside the cache.

A memo is a JSON file valid as long as the files it was worked out from keep their size and
modification time. It only saves time: it may vanish, be torn or be unwritable, and the fact is
then worked out again.
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

Stat = list[int]


def stat_of(path: str | Path) -> Stat | None:
    """``[size, mtime_ns]`` of a file, None when it cannot be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


class Memo:
    """Remembered facts in one directory, and in this process.

    Args:
        directory: where the JSON files lie; made when first written to.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, dict[str, Any]] = {}

    def get(self, subject: str, work_out: Callable[[], tuple[dict[str, Any], list[str]]]) -> dict[str, Any]:
        """The fact about ``subject``.

        Args:
            subject: names the fact and everything it depends on besides files.
            work_out: finds it; returns the fact (JSON values) and the files it depends on.
        """
        path = self._directory / (hashlib.sha256(subject.encode()).hexdigest()[:32] + ".json")
        entry = self._seen.get(subject)
        if entry is None:
            with contextlib.suppress(OSError, ValueError):
                entry = json.loads(path.read_text())
        if entry is not None and _still_valid(entry, subject):
            self._seen[subject] = entry
            fact: dict[str, Any] = entry["fact"]
            return fact
        fact, files = work_out()
        entry = {"subject": subject, "fact": fact, "files": {name: stat_of(name) for name in files}}
        self._seen[subject] = entry
        with contextlib.suppress(OSError):
            _write_atomically(path, json.dumps(entry))
        return fact


def _still_valid(entry: Any, subject: str) -> bool:
    try:
        return entry["subject"] == subject and all(
            recorded is not None and stat_of(name) == recorded for name, recorded in entry["files"].items()
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
