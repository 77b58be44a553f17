"""Entries of a cache whose binaries are a few bytes: no compiler is needed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from op_builder.cache.key import Header, PlanKey, Roots, SystemHeaders, platform_name
from op_builder.cache.store import MANIFEST, Cache, Entry, Manifest
from op_builder.system.records import encode

NO_PROCESS = 2**22 + 1  # beyond the numbers that Linux gives to processes
_PARTS = {"op": "small", "platform": platform_name(), "binding": "stable", "c++ compiler": "g++ 12"}
_ROOTS = Roots({"include0": "/nowhere"})


def manifest(content: bytes = b"binary", **changes: str) -> Manifest:
    """The manifest of a binary ``content``; ``changes`` are to the key's parts."""
    return Manifest(
        op="small",
        artifact="small.so",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        kind="accel",
        namespaces=(),
        defined_namespaces=(),
        operators=(),
        key_parts={**_PARTS, **changes},
        headers=(),
        absent=(),
        system_headers=SystemHeaders.of([]),
        check="none",
        built_at="2026-01-01T00:00:00+00:00",
        build_s=1.0,
        torch="2.13.0",
        accel_ops="0.1.0",
        needs={},
    )


def publish(
    cache: Cache, content: bytes = b"binary", op: str = "small", headers: tuple[Header, ...] = (), **changes: str
) -> Entry:
    """Publish an entry."""
    made = manifest(content, **{"op": op, **changes})._replace(op=op, artifact=f"{op}.so", headers=headers)
    with cache.staging(op) as staging:
        result = staging / "result"
        result.mkdir()
        (result / made.artifact).write_bytes(content)
        return cache.publish(result, made)


def find(cache: Cache, *, any_compiler: bool = False, **changes: str) -> Entry | None:
    """The entry that :func:`publish` made with the same ``changes``."""
    return cache.find(PlanKey({**_PARTS, **changes}), "small", _ROOTS, any_compiler=any_compiler)


def edit_record(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a record's file as a writer that computes the checksum would."""
    record, record_format = members_of(path.read_text())
    edit(record)
    path.write_text(encode(record, record_format))


def members_of(text: str) -> tuple[dict[str, Any], int]:
    """The members of a record, and its format."""
    record = json.loads(text)
    del record["checksum"]
    return record, record.pop("format")


def set_used(entry: Entry, days_ago: float) -> None:
    """Make an entry's last use that many days ago."""
    moment = time.time() - days_ago * 86400
    os.utime(entry.directory / MANIFEST, (moment, moment))
